"""Train a DA-DLM on a text file: AR first, then BD3LM, then DA-DLM, each from the weights of the one before.

python examples/train.py --text book.txt --length 1       # some minutes on a CPU; the default: seconds
"""

import argparse
from dataclasses import replace
from pydoc_data.topics import topics

import dadlm
from dadlm.recipes import route
from dadlm.train import DataConfig, train_route
from dadlm.train.route import stages_of


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", help=".txt, .jsonl or .parquet; default: the language reference of Python")
    parser.add_argument("--out", default="runs/example", help="folder of the three models")
    parser.add_argument("--length", type=float, default=0.02, help="share of the recipe's steps")
    options = parser.parse_args()

    if options.text is None:
        options.text = "topics.txt"
        with open(options.text, "w", encoding="utf-8") as file:
            file.write("\n\n".join(topics[name] for name in sorted(topics)))

    shared, recipes = route("small")  # 1M parameters, context 128, blocks of 8 tokens, 4 candidates
    data = DataConfig(train=options.text, tokenizer="bpe:512")
    shared = replace(shared, data=data, out=options.out, length=options.length)
    for done in train_route(stages_of(shared, recipes), options.out):
        print(f"{done.folder}: {done.step} steps, validation {done.valid:.3f} nats per token")

    texts = dadlm.generate(f"{options.out}/dadlm", ["The "] * 2, max_new_tokens=24, seed=1).texts
    print(*texts, sep="\n---\n")


if __name__ == "__main__":
    main()

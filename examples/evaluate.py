"""Compare two models on a text that neither was trained on, with intervals.

python examples/evaluate.py --text valid.txt --model dadlm --against bd3lm
"""

import argparse
from pydoc_data.topics import topics

import dadlm
from dadlm.evaluate import reconstruction, rows_of


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", help="a text file; default: the language reference of Python")
    parser.add_argument("--model", default="dadlm")
    parser.add_argument("--against", default="bd3lm")
    parser.add_argument("--rows", type=int, default=16, help="rows of 128 tokens to score")
    options = parser.parse_args()

    if options.text is None:
        options.text = "topics.txt"
        with open(options.text, "w", encoding="utf-8") as file:
            file.write("\n\n".join(topics[name] for name in sorted(topics)))

    model, other = (dadlm.load(name, device="auto") for name in (options.model, options.against))
    rows, about = rows_of(model, options.text, length=128)
    count = min(options.rows, len(rows))
    found = reconstruction(model, rows, against=other, count=count, data=about)

    print(f"nats per token to restore masked blocks of {options.text}, {count} rows; lower is better")
    names = {options.model: "interval", options.against: "against_interval", "difference": "difference"}
    for name, value in ((name, found[key]) for name, key in names.items()):
        print(f"{name:12s} {value['mean']:.3f} [{value['low']:.3f}, {value['high']:.3f}]")


if __name__ == "__main__":
    main()

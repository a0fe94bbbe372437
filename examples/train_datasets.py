"""Train on a dataset of 🤗 datasets: one in memory here, or any that `datasets.load_dataset` gives.

pip install 'dadlm[train]'
python examples/train_datasets.py
"""

import argparse
from dataclasses import replace
from pathlib import Path

from datasets import Dataset

import dadlm
from dadlm.recipes import recipe
from dadlm.train import DataConfig, train


def stories(count: int) -> Dataset:
    """Short texts with a little variety; replace this by `load_dataset(...)["train"]`."""
    who, what, where = ("the cat", "a dog", "my aunt"), ("sat", "slept", "sang"), ("at home", "in the sun")
    rows = [f"{who[i % 3]} {what[i // 3 % 3]} {where[i // 9 % 2]} on day {i}. " * 4 for i in range(count)]
    return Dataset.from_dict({"story": rows})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", default="runs/stories", help="folder of the model")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()

    dataset = stories(300).filter(lambda row: len(row["story"]) > 20).shuffle(seed=0)
    file = Path(options.out).with_suffix(".parquet")
    file.parent.mkdir(parents=True, exist_ok=True)
    dataset.to_parquet(file)  # tokenised once, and read from the disk however large it is

    run = recipe("small-bd3lm", out=options.out)  # its settings: dadlm train small-bd3lm --help
    data = DataConfig(train=str(file), text_field="story", tokenizer="bpe:300", rows="documents")
    steps = replace(run.train, steps=options.steps, valid_every=options.steps)
    done = train(replace(run, data=data, train=steps, model=replace(run.model, context=64)))
    print(f"{done.folder}: {done.step} steps, validation {done.valid:.3f} nats per token")
    print(dadlm.generate(options.out, "the cat", max_new_tokens=16, seed=1).texts[0])


if __name__ == "__main__":
    main()

"""What offsets of the candidates are worth before any training: none, random, and those that text suggests.

    python benchmarks/apart.py --model runs/study/base-16/last --train SHARDS --valid SHARDS

Reconstruction and gap of a DA-DLM that has just been made from a BD3LM, on the same rows and masks.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from dadlm.evaluate import score_rows
from dadlm.model import load
from dadlm.recipes import recipe
from dadlm.tokens import Rows, Shards
from dadlm.train.apart import set_apart
from dadlm.train.start import model_from


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", required=True, help="a BD3LM of the lab recipe")
    parser.add_argument("--train", required=True, help="folder of token shards that offsets are found from")
    parser.add_argument("--valid", required=True, help="folder of token shards to measure on")
    parser.add_argument("--rows", type=int, default=32, help="rows that offsets are found from")
    parser.add_argument("--count", type=int, default=16, help="rows to measure on")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    config = recipe("lab-dadlm").model
    text, valid = (
        Rows.from_shards(Shards.open(Path(folder)), config.context)
        for folder in (options.train, options.valid)
    )

    def show(name: str, model) -> None:
        scores = score_rows(model.eval().to(options.device), valid, count=options.count, batch_size=4)
        nll, bound = (float(x.mean()) for x in (scores.reconstruction, scores.bound))
        print(f"{name:16s} reconstruction {nll:.4f}  bound {bound:.4f}  gap {bound - nll:+.4f}", flush=True)

    base = load(options.model)
    show("BD3LM", base)
    for name, size in (("none", 0.0), ("random", 1.0), ("fitted", 0.5), ("fitted", 1.0), ("fitted", 2.0)):
        settings = replace(config, block_size=base.config.block_size, candidate_offset=size)
        model = model_from(options.model, settings, seed=0).to(options.device)
        if name == "fitted":
            set_apart(model, text, count=options.rows, seed=0)
        show(f"{name} {size}", model)


if __name__ == "__main__":
    main()

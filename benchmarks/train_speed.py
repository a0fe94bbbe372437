"""Milliseconds per training step of each family on this machine, on random tokens. A first look, not a study.

python benchmarks/train_speed.py --scale lab --rows 32
"""

import argparse
import json
import time
from dataclasses import replace

import torch

from dadlm.model import Model
from dadlm.recipes import recipe
from dadlm.tokens import Rows
from dadlm.train import Trainer

COMPILE = False


def measure(scale: str, family: str, rows: int, **model) -> dict:
    run = recipe(f"{scale}-{family}", out="/tmp/train-speed")
    train = replace(run.train, batch_size=rows, accumulate=1, compile=COMPILE)
    run = replace(run, model=replace(run.model, **model), train=train)
    config = run.model
    ids = torch.randint(0, config.vocab_size - 2, (4 * rows * config.context,))
    data = Rows.from_ids(ids, config.context)
    trainer = Trainer(run, Model(config), data, data, quiet=True)
    for _ in range(4):
        trainer.step()
    times = []
    for _ in range(10):
        start = time.perf_counter()
        trainer.step()
        times.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
    seconds = sorted(times)[len(times) // 2]
    label = f"{family} N={config.block_size} K={config.candidates} expand_at={config.expand_at}"
    print(
        f"{label:40s} {seconds * 1e3:8.1f} ms  {rows * config.context / seconds:11,.0f} tok/s",
        f" {peak:5.1f} GiB",
        flush=True,
    )
    return {"label": label, "scale": scale, "rows": rows, "ms": seconds * 1e3, "peak_gib": peak}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", default="lab")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--out")
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    global COMPILE
    COMPILE = options.compile
    results = [measure(options.scale, family, options.rows) for family in ("ar", "mdlm", "bd3lm", "dadlm")]
    results.append(measure(options.scale, "dadlm", options.rows, expand_at=0))
    if options.out:
        with open(options.out, "w", encoding="utf-8") as handle:
            json.dump(results, handle, indent=1)


if __name__ == "__main__":
    main()

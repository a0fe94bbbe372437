"""What the AR loss beside diffusion costs: seconds of CPU time of a training step, the `small` recipe.

python benchmarks/joint.py    # one thread; the runs take turns, so that a busy machine is busy for all
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace

import torch

from dadlm.model import Model
from dadlm.recipes import recipe
from dadlm.tokens import Rows, word_level
from dadlm.train import Trainer

STEPS, WARMUP = 12, 2
WAYS = {"block by block": (False, 0.0), "causal_context": (True, 0.0), "and ar_weight": (True, 1.0)}


def trainers() -> Iterator[tuple[str, Trainer]]:
    """Every way of both block families, and an AR model, on made-up text."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 1000, (64 * 128,), generator=generator)
    rows, tokenizer = Rows.from_ids(ids.tolist(), 128), word_level([f"w{i}" for i in range(1023)])
    for family in ("ar", "bd3lm", "dadlm"):
        for way, (causal, weight) in WAYS.items() if family != "ar" else [("", (False, 0.0))]:
            run = recipe(f"small-{family}", out=tempfile.mkdtemp())
            model = replace(run.model, causal_context=causal)
            run = replace(run, model=model, train=replace(run.train, ar_weight=weight, device="cpu"))
            torch.manual_seed(0)
            yield f"{family} {way}", Trainer(run, Model(model, tokenizer), rows, rows, quiet=True)


def main() -> None:
    torch.set_num_threads(1)
    all_trainers = dict(trainers())
    took: dict[str, list[float]] = {name: [] for name in all_trainers}
    for _ in range(WARMUP + STEPS):
        for name, trainer in all_trainers.items():
            start = time.process_time()
            trainer.step()
            took[name].append(time.process_time() - start)
    for name, seconds in took.items():
        print(f"{name:24s} {statistics.median(seconds[WARMUP:]):.3f} s")


if __name__ == "__main__":
    main()

"""Milliseconds a pass in whole texts of the shipped models: the cost of the graph and of edges, by nucleus.

    python benchmarks/passes.py --out FILE

The least of three alternating runs of each, 192 tokens after a short prompt, bf16, everything counted.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import dadlm
from dadlm.evaluate.work import write_result
from dadlm.model import Model

WAYS = [
    ("bd3lm", "standard"),
    ("dadlm", "standard"),
    ("dadlm", "position"),
    ("bd3lm-edges", "standard"),
    ("dadlm-edges", "standard"),
]
DECODINGS: dict[str, dict[str, Any]] = {"FH": {}, "T=8": {"sampler": "random", "steps": 8}}


def ms_a_pass(model: Model, batch: int, seed: int, how: dict[str, Any]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    prompts = ["The history of the city"] * batch
    made = dadlm.generate(model, prompts, max_new_tokens=192, seed=seed, batch_size=batch, **how)
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start) / max(made.forward_passes)


def main() -> None:
    parser = argparse.ArgumentParser(description="milliseconds a pass of the shipped models")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    models = {name: dadlm.load(name, "cuda", "bfloat16") for name, _ in WAYS}
    rows = []
    for batch in (1, 32):
        for decoding, how in DECODINGS.items():
            found: dict[tuple[str, str], list[float]] = {way: [] for way in WAYS}
            for turn in range(4):  # the first one compiles and captures
                for name, nucleus in WAYS:
                    ms = ms_a_pass(models[name], batch, turn, {**how, "nucleus": nucleus})
                    found[name, nucleus] += [ms] if turn else []
            for (name, nucleus), times in found.items():
                row = {"model": name, "nucleus": nucleus, "batch": batch, "decoding": decoding}
                rows.append(row | {"ms": round(min(times), 3)})
                print(json.dumps(rows[-1]), flush=True)
    if options.out is not None:
        device = torch.cuda.get_device_name()
        write_result(options.out, {"device": device, "dtype": "bfloat16", "passes": rows})


if __name__ == "__main__":
    main()

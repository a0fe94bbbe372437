"""Training steps of all families on the same rows, compared with the FLOPs they need (`step_flops`)."""

import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from dadlm.bench.machine import Machine, log
from dadlm.errors import ConfigError
from dadlm.model import Model, ModelConfig
from dadlm.noise import NoiseConfig
from dadlm.recipes import FAMILIES, recipe
from dadlm.threads import one_thread
from dadlm.tokens import Rows
from dadlm.train import RunConfig, Trainer

_WARMUP, _GROUPS, _TOGETHER = 6, 3, 8  # steps


def systems(scale: str, block_size: int | None = None) -> Iterator[tuple[str, RunConfig]]:
    """AR, MDLM, BD3LM and DA-DLM, expanded at the input or for the last third of its layers; BD3LM and the
    latter also with token edges."""
    for family in FAMILIES:
        run = recipe(f"{scale}-{family}", noise=NoiseConfig())  # masks half of the tokens, as counted below
        N, K = block_size or run.model.block_size, run.model.candidates
        names = {"ar": "AR", "mdlm": "MDLM", "bd3lm": f"BD3LM N={N}", "dadlm": f"DA-DLM N={N} K={K}"}
        name, model = names[family], replace(run.model, block_size=N, expand_at=0)
        yield name, replace(run, model=model)
        if family == "dadlm":
            name, model = f"{name} late", replace(model, expand_at=model.layers * 2 // 3)
            yield name, replace(run, model=model)
        if family in ("bd3lm", "dadlm"):
            yield f"{name} edges", replace(run, model=replace(model, edge="bilinear"))


def bench_train(
    scale: str = "paper",
    rows: int = 32,
    compile: bool = True,
    only: tuple[str, ...] = (),
    device: str = "cuda",
) -> dict[str, Any]:
    """Median milliseconds of a whole optimiser step, and the share of peak FLOP/s that it reaches."""
    every = dict(systems(scale))
    chosen = {name: run for name, run in every.items() if not only or any(word in name for word in only)}
    if not chosen:
        raise ConfigError(f"no system is called {' or '.join(only)}: there are {', '.join(every)}")
    machine = Machine(device)
    table: list[dict[str, Any]] = []
    for name, run in chosen.items():
        train = replace(run.train, batch_size=rows, accumulate=1, compile=compile, device=device)
        machine.reset_peak()
        with tempfile.TemporaryDirectory() as folder:
            ms = _step_ms(replace(run, train=train, out=folder), machine)
        flops, peak = step_flops(run.model, rows), machine.peak_mib()
        row = {
            "system": name,
            "family": run.model.family,
            "ms": ms,
            "tokens_per_second": rows * run.model.context / ms * 1e3,
            "flop_use": flops / (ms * 1e9) / machine.tflops,
            "floor_ms": machine.floor_ms(flops, 0),
            "peak_gib": None if peak is None else peak / 1024,
        }
        table.append(row)
        log(row)
    described = machine.describe()
    return {"kind": "train", **described, "scale": scale, "rows": rows, "compile": compile, "steps": table}


def _step_ms(run: RunConfig, machine: Machine) -> float:
    """The median over groups of consecutive steps: while the device works, the CPU draws the next batch."""
    size = 8 * run.train.batch_size * run.model.context
    ids = torch.randint(0, run.model.eot_id or run.model.mask_id, (size,))
    data = Rows.from_ids(ids, run.model.context)
    trainer = Trainer(run, Model(run.model), data, data, quiet=True)

    def together() -> None:
        for _ in range(_TOGETHER):
            trainer.step()

    with one_thread(machine.is_cuda):  # as in training
        for _ in range(_WARMUP):
            trainer.step()
        return statistics.median(machine.timed_ms(together) / _TOGETHER for _ in range(_GROUPS))


def head_weights(config: ModelConfig) -> int:
    """Weights of the vocabulary head, including the columns of token edges."""
    columns = config.edge_rank + config.edge_second_rank if config.edge == "bilinear" else 0
    return (config.width + columns) * config.vocab_size


def step_flops(config: ModelConfig, rows: int) -> float:
    """FLOPs of a step's matrix products; half of the tokens are masked on average."""
    tokens, D = rows * config.context, config.width
    layer = 12 * D * D
    head = head_weights(config)
    if config.family in ("ar", "mdlm"):
        seen = config.context / (2 if config.family == "ar" else 1)
        nodes = config.layers * tokens
        heads = tokens if config.family == "ar" else tokens / 2
        return 6 * nodes * layer + 12 * nodes * seen * D + 6 * heads * head
    N, K = config.block_size, config.nodes_per_mask
    start = 1 / N if config.family == "dadlm" else 0.0
    late = config.expand_at if config.family == "dadlm" else 0
    clean = config.layers - 1 + 0.25  # the clean stream's last layer only makes keys and values
    noisy = late + (config.layers - late) * ((1 + K) / 2 + start)
    nodes = tokens * (clean + noisy)
    return 6 * nodes * layer + 12 * nodes * config.context / 2 * D + 6 * tokens / 2 * K * head

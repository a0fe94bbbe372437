"""What a training run costs, by a model: tokens per second, memory and network of each GPU.

    python benchmarks/cost.py    # the model against the measured single-GPU steps, then its predictions

A step takes the time of its matrix products, of the bytes moved between them, and of the optimiser; three
constants, fitted to the measured steps, turn counts into time and memory (docs/scale.md).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dadlm.bench.train import step_flops, systems
from dadlm.model import ModelConfig
from dadlm.model.checkpoint import count_parameters
from dadlm.recipes import recipe

RESULTS = Path(__file__).parent / "results"
STATE_BYTES = 20  # fp32 weight, gradient, two moments, average
OPTIMISER_BYTES = 56  # read and written by norm, clipping, AdamW and the average
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One GPU and its wires; an H200 with NVLink inside a machine and 400 Gb/s each between machines."""

    tflops: float = 740.0
    """Matrix products in bf16, as measured."""
    gbytes: float = 4000.0
    """Memory, GB/s, as measured."""
    wire: float = 50.0
    """Between machines, GB/s each way."""
    inside: float = 400.0
    """The same between the 8 GPUs of a machine."""


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What the measured steps say of this code."""

    products: float
    """Time of the matrix products, as a multiple of their floor."""
    moved: float
    """Bytes moved in memory per node, layer and unit of width, forward and backward."""
    kept: float
    """Bytes kept for the backward pass per node, layer and unit of width."""


def layer_nodes(config: ModelConfig, rows: int) -> float:
    """Nodes times layers of a step; half of the tokens are masked on average."""
    tokens, layers = rows * config.context, config.layers
    if config.family in ("ar", "mdlm"):
        return tokens * layers
    is_dag = config.family == "dadlm"
    late, start = (config.expand_at, 1 / config.block_size) if is_dag else (0, 0.0)
    noisy = late + (layers - late) * ((1 + config.nodes_per_mask) / 2 + start)
    return tokens * (layers - 1 + 0.25 + noisy)  # the clean stream's last layer only makes keys and values


def step_seconds(config: ModelConfig, rows: int, machine: Machine, constants: Constants) -> float:
    """Forward and backward pass of so many rows, without the optimiser."""
    products = step_flops(config, rows) / (machine.tflops * 1e12)
    moved = layer_nodes(config, rows) * config.width * constants.moved / (machine.gbytes * 1e9)
    return constants.products * products + moved


def optimiser_seconds(parameters: float, machine: Machine) -> float:
    return parameters * OPTIMISER_BYTES / (machine.gbytes * 1e9)


def measured() -> Iterator[tuple[str, ModelConfig, Machine, dict[str, float]]]:
    """The steps of 32 rows that were measured on one H200."""
    for scale in ("paper", "lab"):
        content = json.loads((RESULTS / f"train-h200-{scale}.json").read_text(encoding="utf-8"))
        machine = Machine(tflops=content["ceilings"]["tflops"], gbytes=content["ceilings"]["gbytes"])
        steps = {step["system"]: step for step in content["steps"]}
        for name, run in systems(scale):
            if name in steps:  # those with token edges were not there yet
                yield f"{scale} {name}", run.model, machine, steps[name]


def fit() -> Constants:
    """Least squares of relative errors in time; the median of what is kept."""
    rows, times, kept = [], [], []
    for _, config, machine, step in measured():
        parameters = count_parameters(config)["total"]
        units = layer_nodes(config, 32) * config.width
        seconds = step["ms"] / 1e3
        rest = seconds - optimiser_seconds(parameters, machine)
        rows.append([step_flops(config, 32) / (machine.tflops * 1e12), units / (machine.gbytes * 1e9)])
        rows[-1] = [value / seconds for value in rows[-1]]
        times.append(rest / seconds)
        kept.append((step["peak_gib"] * GIB - STATE_BYTES * parameters) / units)
    (products, moved), *_ = np.linalg.lstsq(np.array(rows), np.array(times), rcond=None)
    return Constants(products=float(products), moved=float(moved), kept=float(np.median(kept)))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run over `gpus`, each with `rows` rows in a micro-batch, `accumulate` of them in a step."""

    name: str
    config: ModelConfig
    parallel: str
    gpus: int
    rows: int
    accumulate: int
    checkpointing: bool = False


def cost(plan: Plan, machine: Machine, constants: Constants) -> dict[str, float]:
    """Per GPU: GiB of memory, GB over the wire and seconds of a step, and the tokens per second of all."""
    config, others = plan.config, (plan.gpus - 1) / plan.gpus
    total = count_parameters(config)["total"]
    layer = count_parameters(config)["layers"] / config.layers
    outside = total - layer * (config.layers - 1)  # what FSDP gathers as one piece: all but the other layers
    units = layer_nodes(config, plan.rows) * config.width
    kept = units * constants.kept
    seconds = step_seconds(config, plan.rows, machine, constants)
    if plan.checkpointing:  # each layer's input in fp32, keys and values in bf16, and all of one layer
        kept = units * (4 + 4) + units / config.layers * constants.kept
        seconds *= 4 / 3
    if plan.parallel == "ddp":
        held, wire = STATE_BYTES * total, 2 * others * 4 * total
    else:
        held = STATE_BYTES * total / plan.gpus + 8 * outside + 2 * 4 * layer  # gathered weights and gradients
        streams = 1 if config.family in ("ar", "mdlm") else 2  # the clean one and the noisy one
        gathered = 2 * streams * 2 * layer * (config.layers - 1) + 2 * 4 * outside
        wire = others * plan.accumulate * (gathered + 4 * total)
    busy = plan.accumulate * seconds + optimiser_seconds(
        total / (plan.gpus if plan.parallel == "fsdp" else 1), machine
    )
    sent = wire / ((machine.inside if plan.gpus <= 8 else machine.wire) * 1e9)
    tokens = plan.gpus * plan.rows * plan.accumulate * config.context
    return {
        "gib": (held + kept) / GIB,
        "wire_gb": wire / 1e9,
        "busy_s": busy,
        "sent_s": sent,
        "tokens_per_second": tokens / max(busy, sent),  # sending overlaps with computing
    }


def plans() -> Iterator[Plan]:
    """The paper's three stages on 8 GPUs, and backbones of 1B and 8B parameters."""
    for family in ("mdlm", "bd3lm", "dadlm"):
        config = recipe(f"paper-{family}").model
        yield Plan(name=f"paper {family}", config=config, parallel="ddp", gpus=8, rows=32, accumulate=2)
    lean = replace(recipe("paper-dadlm").model, architecture="lean", tie_embedding=True, transition="single")
    sizes = {
        "1B": {"layers": 20, "width": 2048, "heads": 16, "expand_at": 14},
        "8B": {"layers": 40, "width": 4096, "heads": 32, "expand_at": 28},
    }
    for size, shape in sizes.items():
        for family in ("bd3lm", "dadlm"):
            config = replace(lean, family=family, **shape)
            for parallel in ("ddp", "fsdp"):
                for gpus in (8, 64):
                    yield Plan(
                        name=f"{size} {family}",
                        config=config,
                        parallel=parallel,
                        gpus=gpus,
                        rows=8,
                        accumulate=1,
                        checkpointing=size == "8B",
                    )


def main() -> None:
    constants, machine = fit(), Machine()
    print(f"{constants}\n\n| step of 32 rows on one H200 | measured ms | model | measured GiB | model |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, config, place, step in measured():
        parameters = count_parameters(config)["total"]
        seconds = step_seconds(config, 32, place, constants) + optimiser_seconds(parameters, place)
        gib = (STATE_BYTES * parameters + layer_nodes(config, 32) * config.width * constants.kept) / GIB
        print(f"| {name} | {step['ms']:.1f} | {seconds * 1e3:.1f} | {step['peak_gib']:.1f} | {gib:.1f} |")
    print("\n| run | GPUs | rows × parts | GiB/GPU | GB sent/GPU | s computing | s sending | tokens/s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for plan in plans():
        values = cost(plan, machine, constants)
        how = f"{plan.name}, {plan.parallel}{', recomputed' if plan.checkpointing else ''}"
        print(
            f"| {how} | {plan.gpus} | {plan.rows} × {plan.accumulate} | {values['gib']:.0f} | "
            f"{values['wire_gb']:.1f} | {values['busy_s']:.3f} | {values['sent_s']:.3f} | "
            f"{values['tokens_per_second']:,.0f} |"
        )


if __name__ == "__main__":
    main()

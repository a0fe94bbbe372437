"""Decoding: AR, BD3LM and DA-DLM of the same size through the same engine, taking turns in one run.

A step is a complete denoising update (first-hitting, nucleus 0.9) after a prefix. The floor counts the
arithmetic of the nodes that exist, and each byte of weights, keys and values once.
"""

import statistics
import time
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from typing import Any

from dadlm.bench.machine import Machine, check_counts, log
from dadlm.bench.train import head_weights, systems
from dadlm.decode import DecodeSettings, release_engine
from dadlm.decode.engine import Engine
from dadlm.decode.generate import completions, decode_steps
from dadlm.decode.picture import new_figure, save_figure
from dadlm.decode.request import Row
from dadlm.model import Model, ModelConfig

_ROUNDS = 4


class _Endless(Model):
    """A model whose random weights never end a text, so that all steps to be timed take place."""

    @property
    def end_ids(self) -> tuple[int, ...]:
        return (self.config.mask_id,)  # which is never written


def _systems(scale: str, block_sizes: tuple[int, ...]) -> dict[str, ModelConfig]:
    """AR once, BD3LM and DA-DLM of each block size."""
    runs = chain.from_iterable(systems(scale, block_size) for block_size in block_sizes)
    return {name: run.model for name, run in runs if name != "MDLM"}


def bench_decode(
    scale: str = "paper",
    block_sizes: tuple[int, ...] = (16, 8, 4),
    batches: tuple[int, ...] = (32, 8, 1),
    prefix: int = 512,
    steps: int = 32,
    texts: bool = True,
    device: str = "cuda",
) -> dict[str, Any]:
    """Milliseconds per step for each system and batch; whole texts at the smallest and the largest batch."""
    check_counts(block_sizes=block_sizes, batches=batches)
    machine = Machine(device)
    models: dict[str, Model] = {
        name: _Endless(config).to(machine.device, machine.dtype).eval()
        for name, config in _systems(scale, block_sizes).items()
    }
    timed = {batch: _steps(models, batch, prefix, steps, machine) for batch in batches}
    rows = [{"system": name, "batch": batch} | timed[batch][name] for name in models for batch in batches]
    whole: list[dict[str, Any]] = []
    for name, model in models.items():
        if not texts or (model.config.family != "ar" and model.config.block_size != block_sizes[0]):
            continue
        for batch in sorted({min(batches), max(batches)}):
            for decoding, (settings, lockstep) in _text_settings(model.config, batch).items():
                row = {"system": name, "batch": batch, "decoding": decoding}
                whole.append(row | _text(model, batch, settings, lockstep, machine))
                log(whole[-1])
        release_engine(model)
    for row in rows:  # at the end: after profiling, everything is slower
        row["launches"] = _launches(models[row["system"]], row["batch"], prefix, machine)
        log({key: row[key] for key in ("system", "batch", "launches", "share_of_floor")})
    _compare(rows)
    described = machine.describe()
    return {"kind": "decode", **described, "scale": scale, "prefix": prefix, "steps": rows, "texts": whole}


def _steps(
    models: dict[str, Model], batch: int, prefix: int, count: int, machine: Machine
) -> dict[str, dict[str, Any]]:
    """The median over `count` steps of each, a few at a time: changes on the machine affect all alike."""
    runs = {name: _Run(model, batch, prefix, count, machine) for name, model in models.items()}
    for _ in range(_ROUNDS):
        for run in runs.values():
            run.time(-(-count // _ROUNDS))
    found = {}
    for name, run in runs.items():
        floor, ms = machine.floor_ms(*_work(models[name], batch, prefix)), statistics.median(run.times)
        shares = {"ratio_to_floor": ms / floor, "share_of_floor": floor / ms}
        found[name] = {"ms": ms, "floor_ms": floor, **shares, "peak_mib": run.peak_mib}
        log({"system": name, "batch": batch} | found[name])
        run.steps.close()
        release_engine(models[name])
    return found


class _Run:
    """The steps of one model inside blocks, after two blocks (or 20 tokens) of warm-up."""

    def __init__(self, model: Model, batch: int, prefix: int, count: int, machine: Machine) -> None:
        N = model.config.block
        self.block, self.machine, self.times, self.index = N, machine, list[float](), 0
        release_engine(model)
        machine.reset_peak()
        held = machine.held_mib()
        warmup = max(20, 2 * N + 1)
        tokens = min(model.config.context - prefix, (warmup + 2 * count + 2 * _ROUNDS) // N * N + 2 * N)
        settings = DecodeSettings(max_new_tokens=tokens)
        self.steps = decode_steps(model, completions(model, _prompts(model, batch, prefix), settings, seed=0))
        for _ in zip(range(min(warmup, tokens // 2)), self.steps, strict=False):
            self.index += 1
        self.peak_mib = _own_peak_mib(model, held, machine)

    def time(self, count: int) -> None:
        """Time this many steps, or what is left; not the first, which finds another model in the caches."""
        wanted = len(self.times) + count
        self.machine.synchronise()
        start, is_first = time.perf_counter(), True
        for _ in self.steps:
            self.machine.synchronise()
            now, place = time.perf_counter(), self.index % self.block
            # The first step of a block waits for the cache write before it, and the last one commits.
            if not is_first and (self.block == 1 or 0 < place < self.block - 1):
                self.times.append((now - start) * 1e3)
            self.index, is_first = self.index + 1, False
            if len(self.times) >= wanted:
                break
            start = time.perf_counter()


def _own_peak_mib(model: Model, held: float | None, machine: Machine) -> float | None:
    """The peak without the other models, whose weights are in `held`, measured before this one ran."""
    peak = machine.peak_mib()
    if peak is None or held is None:
        return None
    return peak - held + sum(one.numel() * one.element_size() for one in model.parameters()) / 2**20


def _launches(model: Model, batch: int, prefix: int, machine: Machine) -> int | None:
    """Launches of a captured step; None if none is captured."""
    release_engine(model)
    config = model.config
    settings = DecodeSettings(max_new_tokens=min(config.context - prefix, max(8, 2 * config.block)))
    decoding = decode_steps(model, completions(model, _prompts(model, batch, prefix), settings, seed=0))
    for _ in zip(range(4), decoding, strict=False):  # the first is launched, and the second captured
        pass
    decoding.close()  # its engine goes back to the model
    captured = (
        one.captured[0]
        for engine in model.engines
        for key, one in engine.graphs.callables.items()
        if key[0] == "pass" and one.captured is not None
    )
    graph = next(captured, None)
    return None if graph is None else machine.launches(graph.replay)


def _compare(rows: list[dict[str, Any]]) -> None:
    """Compare a step of DA-DLM with that of BD3LM with the same blocks, edges and batch."""
    ms = {(row["system"], row["batch"]): row["ms"] for row in rows}
    for row in rows:
        other = row["system"].replace("DA-DLM", "BD3LM").split(" K=")[0]
        other += " edges" if row["system"].endswith(" edges") and " edges" not in other else ""
        is_dadlm = other != row["system"]
        row["ratio_to_bd3lm"] = row["ms"] / ms[other, row["batch"]] if is_dadlm else None
        if is_dadlm:
            log({key: row[key] for key in ("system", "batch", "ratio_to_bd3lm")})


def _work(model: Model, batch: int, prefix: int) -> tuple[float, float]:
    """FLOPs and bytes of one step."""
    config = model.config
    layer = 12 * config.width**2  # adaLN's part is constant, and computed once
    start = int(config.family == "dadlm")
    few, many = config.block + start, config.block * config.nodes_per_mask + start
    late = config.expand_at if config.family == "dadlm" else 0
    nodes = late * few + (config.layers - late) * many  # summed over layers
    head = head_weights(config)
    pairs = late * few * (prefix + few) + (config.layers - late) * many * (prefix + many)
    attention = 4 * pairs * config.width
    flops = batch * (2 * nodes * layer + attention + 2 * head)
    size = model.backbone.embedding.weight.element_size()
    cached = 2 * config.layers * batch * prefix * config.width
    return flops, size * (config.layers * layer + head + cached)


def _prompts(model: Model, rows: int, length: int) -> list[list[int]]:
    words = (model.config.eot_id or model.config.mask_id) - 1
    return [[(row * 7919 + place * 104729) % words for place in range(length)] for row in range(rows)]


def _text_settings(config: ModelConfig, batch: int) -> dict[str, tuple[DecodeSettings, bool]]:
    """Settings for whole texts, and whether rows are decoded in lockstep."""
    if config.family == "ar":
        return {"nucleus": (DecodeSettings(), True)}
    ways = {"FH": (DecodeSettings(), True)}
    for T in sorted({max(1, config.block // part) for part in (1, 2, 4)}, reverse=True):
        settings = DecodeSettings(sampler="random", steps=T)
        ways[f"T={T}"] = settings, True
        if batch > 1:
            ways[f"T={T}, rows wait for none"] = settings, False
    return ways


def _text(
    model: Model, batch: int, settings: DecodeSettings, lockstep: bool, machine: Machine
) -> dict[str, Any]:
    """Complete texts after a prompt of a sixteenth of the context (64 tokens in the paper)."""
    length = model.config.context // 16
    most = model.config.context - length
    machine.reset_peak()
    held = machine.held_mib()
    prompts, engine = _prompts(model, batch, length), Engine(model, lockstep=lockstep)

    def write(seed: int, tokens: int) -> list[Row]:
        rows = completions(model, prompts, replace(settings, max_new_tokens=tokens), seed)
        for _ in decode_steps(model, rows, nullcontext(engine)):
            pass
        return rows

    write(1, min(4 * model.config.block, most))  # warm-up
    machine.reset_peak()
    texts: list[list[Row]] = []
    seconds = machine.timed_ms(lambda: texts.append(write(0, most))) / 1e3
    peak = _own_peak_mib(model, held, machine)
    engine.release()
    tokens = sum(len(row.tokens) for row in texts[0])
    return {
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "tokens_per_forward": tokens / sum(row.forward_passes for row in texts[0]),
        "peak_mib": peak,
    }


def draw_steps(result: dict[str, Any], file: str) -> None:
    """Plot milliseconds per step over the batch size, with each system's floor."""
    figure = new_figure(7, 4.5)
    axes = figure.add_subplot()
    names = dict.fromkeys(row["system"] for row in result["steps"])
    for name in names:
        rows = sorted((row for row in result["steps"] if row["system"] == name), key=lambda row: row["batch"])
        batches = [row["batch"] for row in rows]
        (line,) = axes.plot(batches, [row["ms"] for row in rows], marker="o", label=name)
        axes.plot(batches, [row["floor_ms"] for row in rows], linestyle=":", color=line.get_color())
    axes.set(xscale="log", yscale="log", xlabel="batch", ylabel="milliseconds a step (dotted: floor)")
    axes.set_xticks(batches := sorted({row["batch"] for row in result["steps"]}), map(str, batches))
    axes.minorticks_off()
    axes.set_title(f"{result['device']}, {result['dtype']}, prefix {result['prefix']}")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize="small", frameon=False)
    save_figure(figure, file)

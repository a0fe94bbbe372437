"""Decoding: AR, BD3LM and DA-DLM of the same size through the same engine, in one run.

The step is a complete denoising update, first-hitting, nucleus 0.9, after a prefix. The floor counts the
arithmetic of the nodes that exist and the bytes of weights, keys and values that have to be read once.
"""

import statistics
import time
from dataclasses import replace
from itertools import chain
from typing import Any

from dadlm.bench.machine import Machine, log
from dadlm.bench.train import systems
from dadlm.decode import DecodeSettings, Generated, generate, release_engine
from dadlm.decode.generate import completions, decode_steps
from dadlm.model import Model, ModelConfig


def _systems(scale: str, block_sizes: tuple[int, ...]) -> dict[str, ModelConfig]:
    """AR once, BD3LM and DA-DLM of each block size."""
    runs = chain.from_iterable(systems(scale, block_size) for block_size in block_sizes)
    return {name: run.model for name, run in runs if name != "MDLM"}


def bench_decode(
    scale: str = "paper",
    block_sizes: tuple[int, ...] = (16, 8, 4),
    batches: tuple[int, ...] = (32, 1),
    prefix: int = 512,
    steps: int = 32,
    texts: bool = True,
    device: str = "cuda",
) -> dict[str, Any]:
    """Milliseconds per step for each system and batch; whole texts at batch 1 and the largest batch."""
    machine = Machine(device)
    rows: list[dict[str, Any]] = []
    whole: list[dict[str, Any]] = []
    for name, config in _systems(scale, block_sizes).items():
        model = Model(config).to(machine.device, machine.dtype).eval()
        for batch in batches:
            rows.append({"system": name, "batch": batch} | _step(model, batch, prefix, steps, machine))
            log(rows[-1])
        if texts and (config.family == "ar" or config.block_size == block_sizes[0]):
            for batch in sorted({batches[0], batches[-1]}):
                for decoding, settings in _text_settings(config).items():
                    row = {"system": name, "batch": batch, "decoding": decoding}
                    whole.append(row | _text(model, batch, settings, machine))
                    log(whole[-1])
        del model
    for row in rows:  # at the end: a profiler that was there slows down what is timed after it
        model = Model(_systems(scale, block_sizes)[row["system"]]).to(machine.device, machine.dtype).eval()
        row["launches"] = _launches(model, row["batch"], prefix, machine)
        log({key: row[key] for key in ("system", "batch", "launches", "share_of_floor")})
    _compare(rows)
    described = machine.describe()
    return {"kind": "decode", **described, "scale": scale, "prefix": prefix, "steps": rows, "texts": whole}


def _step(model: Model, batch: int, prefix: int, count: int, machine: Machine) -> dict[str, Any]:
    """The median over `count` steps inside blocks, after two blocks (or 20 tokens) of warm-up."""
    N = model.config.block
    release_engine(model)
    machine.reset_peak()
    warmup = max(20, 2 * N + 1)
    tokens = min(model.config.context - prefix, (warmup + 2 * count) // N * N + 2 * N)
    warmup = min(warmup, tokens // 2)
    settings = DecodeSettings(max_new_tokens=tokens)
    texts = completions(model, _prompts(model, batch, prefix), settings, seed=0)
    times: list[float] = []
    machine.synchronise()
    start = time.perf_counter()
    for index, _ in enumerate(decode_steps(model, texts)):
        machine.synchronise()
        now = time.perf_counter()
        # The first step of a block waits for the cache write before it, and the last one commits.
        inside = N == 1 or 0 < index % N < N - 1
        if index >= warmup and inside:
            times.append((now - start) * 1e3)
        if len(times) == count:
            break
        start = time.perf_counter()
    floor, ms = machine.floor_ms(*_work(model, batch, prefix)), statistics.median(times)
    row = {"ms": ms, "floor_ms": floor, "ratio_to_floor": ms / floor, "share_of_floor": floor / ms}
    return row | {"peak_mib": machine.peak_mib()}


def _launches(model: Model, batch: int, prefix: int, machine: Machine) -> int | None:
    """Of a captured step; None where none is captured."""
    release_engine(model)
    config = model.config
    settings = DecodeSettings(max_new_tokens=min(config.context - prefix, max(8, 2 * config.block)))
    decoding = decode_steps(model, completions(model, _prompts(model, batch, prefix), settings, seed=0))
    for _ in zip(range(4), decoding, strict=False):  # the first is launched, and the second captured
        pass
    decoding.close()  # its engine goes back to the model, and what it works on is nobody's any more
    captured = (
        one.captured[0]
        for engine in model.engines
        for key, one in engine.graphs.callables.items()
        if key[0] == "pass" and one.captured is not None
    )
    graph = next(captured, None)
    return None if graph is None else machine.launches(graph.replay)


def _compare(rows: list[dict[str, Any]]) -> None:
    """What a step of DA-DLM costs beside that of BD3LM with the same blocks, edges and batch."""
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
    layer = 12 * config.width**2  # what adaLN adds is constant, and computed once
    start = int(config.family == "dadlm")
    few, many = config.block + start, config.block * config.nodes_per_mask + start
    late = config.expand_at if config.family == "dadlm" else 0
    nodes = late * few + (config.layers - late) * many  # summed over layers
    head = config.vocab_size * config.width
    pairs = late * few * (prefix + few) + (config.layers - late) * many * (prefix + many)
    attention = 4 * pairs * config.width
    flops = batch * (2 * nodes * layer + attention + 2 * head)
    size = model.backbone.embedding.weight.element_size()
    cached = 2 * config.layers * batch * prefix * config.width
    return flops, size * (config.layers * layer + head + cached)


def _prompts(model: Model, rows: int, length: int) -> list[list[int]]:
    words = (model.config.eot_id or model.config.mask_id) - 1
    return [[(row * 7919 + place * 104729) % words for place in range(length)] for row in range(rows)]


def _text_settings(config: ModelConfig) -> dict[str, DecodeSettings]:
    if config.family == "ar":
        return {"nucleus": DecodeSettings()}
    steps = sorted({max(1, config.block // part) for part in (1, 2, 4)}, reverse=True)
    few = {f"T={T}": DecodeSettings(sampler="random", steps=T) for T in steps}
    return {"FH": DecodeSettings()} | few


def _text(model: Model, batch: int, settings: DecodeSettings, machine: Machine) -> dict[str, Any]:
    """Complete texts after a prompt of a sixteenth of the context (64 tokens in the paper)."""
    length = model.config.context // 16
    most = model.config.context - length
    prompts = _prompts(model, batch, length)

    def write(seed: int, tokens: int) -> Generated:
        how = replace(settings, max_new_tokens=tokens)
        return generate(model, prompts, seed=seed, batch_size=batch, settings=how)

    write(1, min(4 * model.config.block, most))  # warm-up
    machine.reset_peak()
    texts: list[Generated] = []
    seconds = machine.timed_ms(lambda: texts.append(write(0, most))) / 1e3
    tokens = sum(map(len, texts[0].tokens))
    return {
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "tokens_per_forward": texts[0].mean_tokens_per_forward,
        "peak_mib": machine.peak_mib(),
    }

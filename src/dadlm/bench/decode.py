"""Decoding: AR, BD3LM and DA-DLM of the same size through the same engine, in one run.

The step is the paper's: a complete denoising update (network, path, tokens, remask), first-hitting, nucleus
0.9, after a given prefix. The floor counts the arithmetic of the nodes that exist in the step's layout and
the bytes of weights, keys and values that have to be read once.
"""

import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from dadlm.bench.machine import (
    Ceilings,
    describe_machine,
    log,
    measure_ceilings,
    peak_mib,
    reset_peak,
    synchronise,
)
from dadlm.decode import DecodeSettings, generate, release_engine
from dadlm.decode.generate import completions, decode_steps
from dadlm.model import Model, ModelConfig
from dadlm.recipes import recipe


def systems(scale: str, block_sizes: tuple[int, ...]) -> Iterator[tuple[str, ModelConfig]]:
    """AR, then for each block size BD3LM and DA-DLM, expanded at the input and for the last third."""
    yield "AR", recipe(f"{scale}-ar").model
    for N in block_sizes:
        base = replace(recipe(f"{scale}-dadlm").model, block_size=N)
        late = base.layers * 2 // 3
        yield f"BD3LM N={N}", replace(base, family="bd3lm")
        yield f"DA-DLM N={N} K={base.candidates}", replace(base, expand_at=0)
        yield f"DA-DLM N={N} K={base.candidates} late", replace(base, expand_at=late)


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
    place = torch.device(device)
    dtype = torch.bfloat16 if place.type == "cuda" else torch.float32
    ceilings = measure_ceilings(place, dtype)
    rows: list[dict[str, Any]] = []
    whole: list[dict[str, Any]] = []
    for name, config in systems(scale, block_sizes):
        model = Model(config).to(place, dtype).eval()
        for batch in batches:
            rows.append({"system": name, "batch": batch} | _step(model, batch, prefix, steps, ceilings))
            log(rows[-1])
        if texts and (config.family == "ar" or config.block_size == block_sizes[0]):
            for batch in sorted({batches[0], batches[-1]}):
                for settings in _text_settings(config):
                    whole.append({"system": name, "batch": batch} | _text(model, batch, settings))
                    log(whole[-1])
        del model
    machine = describe_machine(place, dtype, ceilings)
    return {"kind": "decode", **machine, "scale": scale, "prefix": prefix, "steps": rows, "texts": whole}


def _step(model: Model, batch: int, prefix: int, count: int, ceilings: Ceilings) -> dict[str, Any]:
    """The median over `count` steps inside blocks, after two blocks (or 20 tokens) of warm-up."""
    device, N = model.device, model.config.block
    release_engine(model)
    reset_peak(device)
    warmup = max(20, 2 * N + 1)
    tokens = min(model.config.context - prefix, (warmup + 2 * count) // N * N + 2 * N)
    warmup = min(warmup, tokens // 2)
    settings = DecodeSettings(max_new_tokens=tokens)
    texts = completions(model, _prompts(model, batch, prefix), settings, seed=0)
    times: list[float] = []
    synchronise(device)
    start = time.perf_counter()
    for index, _ in enumerate(decode_steps(model, texts)):
        synchronise(device)
        now = time.perf_counter()
        # The first step of a block waits for the cache write before it, and the last one commits.
        inside = N == 1 or 0 < index % N < N - 1
        if index >= warmup and inside:
            times.append((now - start) * 1e3)
        if len(times) == count:
            break
        start = time.perf_counter()
    floor = ceilings.floor_ms(*_work(model, batch, prefix))
    ms = statistics.median(times)
    return {"ms": ms, "floor_ms": floor, "ratio_to_floor": ms / floor, "peak_mib": peak_mib(device)}


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


def _text_settings(config: ModelConfig) -> list[tuple[str, DecodeSettings]]:
    if config.family == "ar":
        return [("nucleus", DecodeSettings())]
    T = sorted({max(1, config.block // part) for part in (1, 2, 4)}, reverse=True)
    few = [(f"T={steps}", DecodeSettings(sampler="random", steps=steps)) for steps in T]
    return [("FH", DecodeSettings()), *few]


def _text(model: Model, batch: int, named: tuple[str, DecodeSettings]) -> dict[str, Any]:
    """Complete texts after a prompt of a sixteenth of the context (64 tokens in the paper)."""
    name, settings = named
    context = model.config.context
    length = context // 16
    settings = replace(settings, max_new_tokens=context - length)
    prompts = _prompts(model, batch, length)
    short = replace(settings, max_new_tokens=min(4 * model.config.block, context - length))
    generate(model, prompts, seed=1, batch_size=batch, settings=short)  # warm-up
    reset_peak(model.device)
    synchronise(model.device)
    start = time.perf_counter()
    out = generate(model, prompts, seed=0, batch_size=batch, settings=settings)
    synchronise(model.device)
    seconds = time.perf_counter() - start
    tokens = sum(map(len, out.tokens))
    return {
        "decoding": name,
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "tokens_per_forward": out.mean_tokens_per_forward,
        "peak_mib": peak_mib(model.device),
    }

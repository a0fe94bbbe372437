"""Time of a complete denoising update, and memory, by the paper's protocol.

First-hitting without infilling, with sampled paths. An update is the network, the choice of path and tokens,
and remasking; one that begins a block also includes the prefill or the cache writes of the block before, and
is not counted.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import count, islice
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

import torch

from dadlm import counter
from dadlm.decode import DecodeSettings
from dadlm.decode.engines import release_engine
from dadlm.decode.generate import completions, decode_steps
from dadlm.decode.slots import ONCE_PER_BLOCK
from dadlm.errors import ConfigError
from dadlm.evaluate.presets import Configuration, default_prompt_tokens
from dadlm.evaluate.subject import describe
from dadlm.evaluate.timing import alternately, doubts, other_work
from dadlm.evaluate.work import Work
from dadlm.model import Model

_MIB = 2**20
_ATTEMPTS = 20  # texts that may end at once before we give up
_BLOCKS = 8  # of a text that may be decided without an update to time
_STATM = Path("/proc/self/statm")


@dataclass(frozen=True, kw_only=True)
class LatencySettings:
    """What is timed."""

    prompt_tokens: int | None = None
    """Tokens of the random prompts. None: 64, or half of a context below 128."""
    new_tokens: int | None = None
    """Length of the text whose memory use is measured. None: up to the end of the context."""
    batch_size: int = 32
    """Texts decoded at once."""
    steps: int = 10
    """Denoising steps that are measured."""
    warmup: int = 10
    """Denoising steps before them, for warm-up."""
    seed: int = 0


def latency(
    models: Mapping[str, Model],
    settings: LatencySettings | None = None,
    *,
    decoding: Mapping[str, DecodeSettings] | None = None,
    out: str | Path | None = None,
    quiet: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Median milliseconds of an update of each model, MiB of a whole generation, ratios to BD3LM.

    Prompts are random tokens; first-hitting, where `decoding` has nothing else for a model. `options` are
    fields of the settings.
    """
    settings, decoding = replace(settings or LatencySettings(), **options), decoding or {}
    if not models:
        raise ConfigError("no models to measure")
    if settings.batch_size < 1 or settings.steps < 1 or settings.warmup < 0:
        raise ConfigError(
            "batch_size and steps must be at least 1 and warmup at least 0, "
            f"got {settings.batch_size}, {settings.steps} and {settings.warmup}"
        )
    context = min(model.config.context for model in models.values())
    given = default_prompt_tokens(context) if settings.prompt_tokens is None else settings.prompt_tokens
    if not 0 < given < context:
        raise ConfigError(f"prompt_tokens must be in 1..{context - 1}, got {given}")
    settings = replace(settings, prompt_tokens=given, new_tokens=settings.new_tokens or context - given)
    subject = {
        "device": device_name(next(iter(models.values()))),
        **{one.name: getattr(settings, one.name) for one in fields(LatencySettings)},
        "threads": torch.get_num_threads(),
        "models": [describe(model, name) for name, model in models.items()],
        "settings": {name: Configuration(how).label for name, how in decoding.items()},
    }
    with Work("latency", subject, out, quiet) as work:
        for names in work.batches(list(models), len(models), "latency"):
            how = {name: decoding.get(name, DecodeSettings()) for name in names}
            work.add(_measure({name: models[name] for name in names}, how, settings).items())
        measured = zip(subject["models"], work.values(models), strict=True)
        rows = [{"model": metadata, **values} for metadata, values in measured]
        kind = "resident in the process, other models of this run included; looked at after each update"
        if any(model.device.type == "cuda" for model in models.values()):
            kind = "allocated by tensors on the GPU"
        return work.finish({"rows": _with_ratios(rows), "memory_kind": kind, "warnings": doubts(rows)})


def _measure(
    models: Mapping[str, Model], how: Mapping[str, DecodeSettings], settings: LatencySettings
) -> dict[str, dict[str, Any]]:
    """The measurements of each model; updates are timed in turns, so that other load slows all models
    alike."""
    busy = other_work(models.values())
    size, length = settings.batch_size, settings.prompt_tokens or 0
    prompts = {name: random_prompts(model, size, length, settings.seed) for name, model in models.items()}
    timers = {
        name: timed_updates(model, prompts[name], how[name], seed=settings.seed)
        for name, model in models.items()
    }
    times, measured = alternately(timers, settings.steps, settings.warmup), {}
    timers.clear()  # their engines are released before memory is looked at
    for name, took in times.items():
        if not took:
            raise ConfigError(
                f"no step of {name} could be timed: among {size} texts one always ends at once; "
                "use a smaller batch size or shorter prompts"
            )
        watched = replace(how[name], max_new_tokens=settings.new_tokens or 0)
        measured[name] = {
            "ms_median": median(took),
            "ms_mean": fmean(took),
            "ms_min": min(took),
            "ms_max": max(took),
            "ms_quartiles": [*quantiles(took, n=4)[::2]] if len(took) > 1 else [took[0], took[0]],
            "updates": len(took),  # fewer than asked for where texts end soon
            "other_work": busy,
            "memory_mib": watch_memory(models[name], prompts[name], watched, settings.seed),
        }
    return measured


def time_updates(
    model: Model,
    prompts: Sequence[Sequence[int]],
    settings: DecodeSettings | None = None,
    *,
    steps: int = 10,
    warmup: int = 10,
    seed: int = 0,
) -> list[float]:
    """Milliseconds of `steps` updates of the whole batch after `warmup` others; prompts are of one length.

    Texts run to the end of the context. Fewer times come back where there is nothing more to time: texts end
    at once, or every block is decided in its first two updates.
    """
    return list(islice(timed_updates(model, prompts, settings, seed=seed), warmup, warmup + steps))


def timed_updates(
    model: Model, prompts: Sequence[Sequence[int]], settings: DecodeSettings | None = None, *, seed: int = 0
) -> Iterator[float]:
    """Milliseconds of one update after the other, over as many texts as are needed."""
    longest = model.config.context - len(prompts[0])
    settings = replace(settings or DecodeSettings(), max_new_tokens=longest)
    fruitless = 0
    while fruitless < _ATTEMPTS:
        fruitless += 1
        for took in _updates(model, prompts, settings, seed):
            yield took
            fruitless = 0
        seed += len(prompts)  # the next texts are others


def _updates(
    model: Model, prompts: Sequence[Sequence[int]], settings: DecodeSettings, seed: int
) -> Iterator[float]:
    """Milliseconds of the updates of one batch that do not begin a block, until a text has ended."""
    # With one or two updates per block there are no others, so all are timed, for every model.
    few = settings.steps in (1, 2) or model.config.block == 1
    # Updates that launch, then capture, what the others replay.
    preparing = 1 + (ONCE_PER_BLOCK if few else 1)
    stepping = decode_steps(model, completions(model, prompts, settings, seed))
    timed = blocks = 0
    for number in count():
        if blocks == _BLOCKS and not timed:
            return
        _wait(model)
        start = time.perf_counter()
        result = next(stepping, None)
        _wait(model)
        took = 1000 * (time.perf_counter() - start)
        if result is None:
            return
        if (step := result.step) is None:
            continue
        begins = not step.block.step.any()
        if begins and int(step.block.masked.any(1).sum()) < len(prompts):  # some text is over
            return
        blocks += bool(result.committed)
        if number >= preparing and (few or not (begins or result.committed)):
            timed += 1
            yield took


def watch_memory(
    model: Model, prompts: Sequence[Sequence[int]], settings: DecodeSettings, seed: int
) -> dict[str, float | None]:
    """MiB before the prompt is read, while the last block is there, and the most in between."""
    release_engine(model)  # what earlier texts left is not this one's
    stepping = decode_steps(model, completions(model, prompts, settings, seed))
    if model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(model.device)
    start = end = peak = _memory(model)
    for _ in stepping:
        end = _memory(model)
        peak = None if peak is None or end is None else max(peak, end)
    if model.device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(model.device) / _MIB
    return {"start": start, "end": end, "peak": peak}


def random_prompts(model: Model, rows: int, length: int, seed: int) -> list[list[int]]:
    """Ids that end no text."""
    config = model.config
    row, place = torch.arange(rows)[:, None], torch.arange(length)
    ids = (counter.uniform(seed, row, place) * (config.vocab_size - 2)).long()
    return (ids + (ids >= config.eot_id)).tolist()


def device_name(model: Model) -> str:
    if model.device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(model.device)})"
    return model.device.type


def _wait(model: Model) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)


def _memory(model: Model) -> float | None:
    """MiB in use now; None where the system does not say."""
    if model.device.type == "cuda":
        return torch.cuda.memory_allocated(model.device) / _MIB
    if not _STATM.exists():
        return None
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / _MIB


def _with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each row with its time over that of the first BD3LM of the same block size."""
    bd3lm = [row for row in reversed(rows) if row["model"]["family"] == "bd3lm"]
    base = {row["model"]["block_size"]: row["ms_median"] for row in bd3lm}
    for row in rows:
        size = row["model"].get("block_size")
        row["ratio_to_bd3lm"] = row["ms_median"] / base[size] if size in base else None
    return rows

"""Prompts → texts, for every family through one call.

A row's text depends on its prompt, seed and settings, never on the rows beside it.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack

import torch

from dadlm.decode.engine import Engine, StepResult
from dadlm.decode.engines import borrow_engine, engine_of
from dadlm.decode.events import StepEvent, event_of
from dadlm.decode.named import model_of
from dadlm.decode.pair import LOOKUP, usual_draft
from dadlm.decode.request import Gap, Prompt, Request, Row, ids_of, is_int, prompts_of, seeds_of, settings_of
from dadlm.decode.settings import DecodeOptions, DecodeSettings
from dadlm.errors import ConfigError
from dadlm.model import Model, in_mode
from dadlm.model.capture import empty_cache


@dataclass(frozen=True)
class Generated:
    """Completions, in the order of the prompts."""

    texts: list[str]
    """Decoded completions without the prompt and without end-of-text."""
    tokens: list[list[int]]
    """Generated ids up to and including the first end-of-text or, with a chat template, end of a turn."""
    forward_passes: list[int]
    """Denoising passes of each sample: neither prefill nor cache writes. They end when all that was asked for
    is decided: with end-of-text, or with the last of `max_new_tokens`."""
    cache_passes: list[int]
    """Passes that only wrote keys and values of a finished block."""
    seeds: list[int]
    """The seed of each sample; giving it again gives the same text again."""
    cycles: list[int] = field(default_factory=list)
    """Mode lossless: drafts that were verified, steps without a draft included; else 0."""

    @property
    def tokens_per_cycle(self) -> list[float]:
        """Mode lossless."""
        return [len(ids) / max(1, cycles) for ids, cycles in zip(self.tokens, self.cycles, strict=False)]

    @property
    def tokens_per_forward(self) -> list[float]:
        return [
            len(ids) / max(1, passes) for ids, passes in zip(self.tokens, self.forward_passes, strict=True)
        ]

    @property
    def mean_tokens_per_forward(self) -> float:
        """Of the whole set: all tokens over all passes."""
        return sum(map(len, self.tokens)) / max(1, sum(self.forward_passes))


@dataclass(frozen=True)
class Filled:
    """A text without gaps, and what it took."""

    text: str
    """Decoded, end-of-text left out."""
    tokens: list[int]
    """The whole text."""
    gaps: list[list[int]]
    """What was put into each gap."""
    forward_passes: int
    cache_passes: int
    """Blocks whose keys and values were written from the first gap on."""
    seed: int


def generate(
    model: Model | str | Path,
    prompts: Prompt | Iterable[Prompt],
    *,
    seed: int | Sequence[int] | None = None,
    batch_size: int = 32,
    cache: bool = True,
    draft: Model | str | Path | None = None,
    settings: DecodeSettings | None = None,
    **options: Unpack[DecodeOptions],
) -> Generated:
    """Complete each prompt. Options are those of `DecodeSettings`; `cache=False` is the slow twin.

    `model` may be a name or folder, as for `dadlm.load`: it is then loaded once in a process, on a GPU if
    there is one. `draft` is the model that drafts in mode lossless, or "lookup": what stood in the text
    before; None: the model itself, if it has a causal context, bd3lm-edges for the name "ar", else "lookup".
    """
    if not is_int(batch_size) or (batch_size := int(batch_size)) < 1:
        raise ConfigError(f"batch_size must be a whole number of at least 1, got {batch_size!r}")
    settings = settings_of(settings, options)
    if draft is not None and settings.mode != "lossless":
        raise ConfigError(f"draft belongs to mode lossless, and the mode is {settings.mode}: leave it out")
    if settings.mode == "lossless" and not cache:
        raise ConfigError("mode lossless needs its cache: leave cache=False out, or use mode ar")
    if settings.mode == "lossless":
        draft = usual_draft(model) if draft is None else draft
        draft = draft if draft is None or draft == LOOKUP else model_of(draft)
    model, engines = engine_of(model_of(model), settings.mode, draft, cache)  # type: ignore[arg-type]
    rows = completions(model, prompts_of(prompts), settings, seed)
    with engines as engine:
        for first in range(0, len(rows), batch_size):
            _run(engine, rows[first : first + batch_size])
    return Generated(
        texts=[_text(model, row.tokens) for row in rows],
        tokens=[row.tokens for row in rows],
        forward_passes=[row.forward_passes for row in rows],
        cache_passes=[row.cache_passes for row in rows],
        seeds=[row.seed for row in rows],
        cycles=[row.cycles for row in rows],
    )


def stream(
    model: Model | str | Path,
    prompt: Prompt,
    *,
    seed: int | None = None,
    top_tokens: int = 3,
    settings: DecodeSettings | None = None,
    **options: Unpack[DecodeOptions],
) -> Iterator[StepEvent]:
    """Complete one prompt, giving each denoising step with its graph as it happens.

    `model` and options are those of `generate`.
    """
    settings = settings_of(settings, options)
    if top_tokens < 1:
        raise ConfigError(f"top_tokens must be at least 1, got {top_tokens}")
    if settings.mode == "lossless":
        raise ConfigError("mode lossless has no denoising steps to show: mode ar writes the same text")
    model = in_mode(model_of(model), settings.mode)
    rows = completions(model, [prompt], settings, seed)  # wrong input fails here, not at the first step
    steps = (result.step for result in decode_steps(model, rows))
    return (event_of(model, step, top_tokens) for step in steps if step and bool(step.block.masked.any()))


def fill_gaps(
    model: Model | str | Path,
    ids: Sequence[int],
    gaps: Sequence[Gap],
    *,
    seed: int | None = None,
    settings: DecodeSettings | None = None,
    **options: Unpack[DecodeOptions],
) -> Filled:
    """Fill the gaps (first, length) of a text `ids`, which may have anything there.

    Known tokens of a block are anchors. A block model (bd3lm, dadlm) fills its blocks from left to right: a
    gap is filled knowing the text before its block and the known tokens inside its block, not the blocks that
    follow. MDLM sees the whole text.
    """
    settings = settings_of(settings, options)
    if not gaps:
        raise ConfigError("no gaps: give (first, length) of at least one")
    if not all(isinstance(gap, Sequence) and len(gap) == 2 and all(map(is_int, gap)) for gap in gaps):
        raise ConfigError(f"a gap is (first, length), two whole numbers; got {list(gaps)!r}")
    pairs = tuple((int(first), int(length)) for first, length in gaps)
    request = Request(ids=tuple(ids), gaps=pairs, settings=settings, seed=seeds_of(seed, 1)[0])
    model = in_mode(model_of(model), settings.mode)
    row = Row(model, request)
    with borrow_engine(model) as engine:
        _run(engine, [row])
    return Filled(
        text=_text(model, row.tokens),
        tokens=row.tokens,
        gaps=[row.tokens[first : first + length] for first, length in pairs],
        forward_passes=row.forward_passes,
        cache_passes=row.cache_passes,
        seed=row.seed,
    )


def completions(
    model: Model, prompts: Sequence[Prompt], settings: DecodeSettings, seed: int | Sequence[int] | None
) -> list[Row]:
    """Rows of an engine that complete these prompts, checked against the model."""
    seeds = seeds_of(seed, len(prompts))
    asked = [
        Request(ids=tuple(ids_of(model, prompt)), settings=settings, seed=row_seed)
        for prompt, row_seed in zip(prompts, seeds, strict=True)
    ]
    return [Row(model, request) for request in asked]


def decode_steps(
    model: Model, rows: Sequence[Row], engines: AbstractContextManager[Engine] | None = None
) -> Generator[StepResult]:
    """Decode rows side by side, with the model's engine or another; yields what each forward pass did."""
    with engines or borrow_engine(model) as engine:
        for row in rows:
            engine.add(row)
        while engine.rows:
            yield engine.step()


def _run(engine: Engine, rows: Sequence[Row]) -> None:
    full = None
    try:
        for row in rows:
            engine.add(row)
        while engine.rows:
            engine.step()
    except torch.OutOfMemoryError as error:
        full = error.with_traceback(None)  # whose frames would hold on to the memory
    if full is not None:
        engine.release()
        raise ConfigError(_what_fits(engine.model, rows)) from full


def _what_fits(model: Model, rows: Sequence[Row]) -> str:
    """How many rows fit the device: mostly keys and values, and half as much again for the rest."""
    config, longest = model.config, max(row.length for row in rows)
    size = model.backbone.embedding.weight.element_size()
    row_bytes = 1.5 * 2 * config.layers * longest * config.key_heads * config.query_width * size
    free = 0
    if model.device.type == "cuda":
        empty_cache()
        free = torch.cuda.mem_get_info(model.device)[0]
    fits = min(len(rows) - 1, int(free / row_bytes))
    advice = (
        f"about {fits} would: pass batch_size {fits}" if fits > 0 else "pass batch_size 1 or fewer new tokens"
    )
    return f"out of memory: {len(rows)} rows of {longest} tokens do not fit {model.device}; {advice}"


def _text(model: Model, ids: list[int]) -> str:
    return "" if model.tokenizer is None else model.tokenizer.decode(ids)

"""Prompts → texts, for every family through one call.

A row's text depends on its prompt, seed and settings, never on the rows beside it.
"""

import secrets
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from typing import SupportsInt, TypeGuard

import torch

from dadlm.decode.block import Step
from dadlm.decode.engine import Engine
from dadlm.decode.events import StepEvent, event_of
from dadlm.decode.predict import (
    BlockPredictor,
    CausalPredictor,
    Predictor,
    UncachedBlockPredictor,
    WindowPredictor,
)
from dadlm.decode.rows import Row, Rows
from dadlm.decode.settings import DecodeSettings
from dadlm.errors import ConfigError
from dadlm.model import Model
from dadlm.model.capture import give_back_cached

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Generated:
    """Completions, in the order of the prompts."""

    texts: list[str]
    """Decoded completions without the prompt and without end-of-text."""
    tokens: list[list[int]]
    """Generated ids up to and including the first end-of-text."""
    forward_passes: list[int]
    """Denoising passes of each sample: neither prefill nor cache writes. They end with end-of-text; a text
    without one is decoded to the end of its last block and then cut, so a length that is no multiple of the
    block costs passes for tokens not counted."""
    cache_passes: list[int]
    """Passes that only wrote keys and values of a finished block."""
    seeds: list[int]
    """The seed of each sample; giving it again gives the same text again."""

    @property
    def tokens_per_forward(self) -> list[float]:
        return [
            len(ids) / max(1, passes) for ids, passes in zip(self.tokens, self.forward_passes, strict=True)
        ]

    @property
    def mean_tokens_per_forward(self) -> float:
        """Of the whole set: all tokens over all passes."""
        return sum(map(len, self.tokens)) / max(1, sum(self.forward_passes))


def generate(
    model: Model,
    prompts: Prompt | Sequence[Prompt],
    *,
    seed: int | Sequence[int] | None = None,
    batch_size: int = 32,
    cache: bool = True,
    settings: DecodeSettings | None = None,
    **options,
) -> Generated:
    """Complete each prompt. Options are those of `DecodeSettings`; `cache=False` is the slow twin."""
    settings = settings_of(settings, options)
    rows = start_rows(model, _as_list(prompts), settings, seed)
    if batch_size < 1:
        raise ConfigError(f"batch_size must be at least 1, got {batch_size}")
    for first in range(0, len(rows), batch_size):
        full = None
        try:
            for _ in decode(model, rows[first : first + batch_size], settings, cache):
                pass
        except torch.OutOfMemoryError as error:
            full = error.with_traceback(None)  # whose frames would hold on to the memory
        if full is not None:
            raise ConfigError(_what_fits(model, rows, batch_size)) from full
    return Generated(
        texts=[_text(model, row.tokens) for row in rows],
        tokens=[row.tokens for row in rows],
        forward_passes=[row.forward_passes for row in rows],
        cache_passes=[row.cache_passes for row in rows],
        seeds=[row.seed for row in rows],
    )


def _what_fits(model: Model, rows: list[Row], batch_size: int) -> str:
    """How many rows the device has room for: mostly keys and values, and half as much again for the rest."""
    config = model.config
    longest = max(row.length for row in rows)
    size = model.backbone.embedding.weight.element_size()
    row_bytes = 1.5 * 2 * config.layers * longest * config.heads * config.query_width * size
    free = 0
    if model.device.type == "cuda":
        give_back_cached()
        free = torch.cuda.mem_get_info(model.device)[0]
    fits = min(batch_size - 1, int(free / row_bytes))
    advice = (
        f"about {fits} would: pass batch_size {fits}" if fits > 0 else "pass batch_size 1 or fewer new tokens"
    )
    return f"out of memory: {batch_size} rows of {longest} tokens do not fit {model.device}; {advice}"


def stream(
    model: Model,
    prompt: Prompt,
    *,
    seed: int | None = None,
    top_tokens: int = 3,
    settings: DecodeSettings | None = None,
    **options,
) -> Iterator[StepEvent]:
    """Complete one prompt, giving each denoising step with its graph as it happens."""
    settings = settings_of(settings, options)
    if top_tokens < 1:
        raise ConfigError(f"top_tokens must be at least 1, got {top_tokens}")
    rows = start_rows(model, [prompt], settings, seed)  # wrong input fails here, not at the first step
    steps = (step for step in decode(model, rows, settings) if bool(step.block.masked.any()))
    return (event_of(model, step, top_tokens) for step in steps)


@torch.inference_mode()
def decode(model: Model, texts: list[Row], settings: DecodeSettings, cache: bool = True) -> Iterator[Step]:
    """Decode rows side by side, block by block; yields after every forward pass, fills in the rows."""
    with closing(_decode(model, texts, settings, cache)) as steps:
        while True:
            # Without autocast: the cache has the weights' own type. Entered for each step anew: inference
            # mode ends at every yield, and what it restores then has the caller's autocast in it. So is the
            # mode: between steps the model is the caller's.
            with torch.autocast(model.device.type, enabled=False), at_rest(model):
                step = next(steps, None)
            if step is None:
                return
            yield step


@contextmanager
def ready_to_decode(model: Model) -> Iterator[None]:
    """While this is open, the model does not train and keeps what depends on its weights alone."""
    with at_rest(model), model.backbone.constants_kept(), model.head.constants_kept():
        yield


@contextmanager
def at_rest(model: Model) -> Iterator[None]:
    """While this is open, the model does not train."""
    training = model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()


def _decode(
    model: Model, texts: list[Row], settings: DecodeSettings, cache: bool
) -> Generator[Step, None, None]:
    with model.backbone.constants_kept(), model.head.constants_kept():
        rows = Rows(texts, model.config, settings, model.device)
        predictor = predictor_for(model, rows, cache)
        predictor.prefill(rows.ids, rows.prompt if model.config.family == "ar" else rows.first)
        engine = Engine(model, rows, predictor, settings, graphs=cache and model.device.type == "cuda")
        while rows.texts:
            engine.begin()
            for room in engine.passes():
                yield engine.step(room)
            engine.commit()
            engine.drop_finished()
            if rows.texts:
                engine.write()


def predictor_for(model: Model, rows: Rows, cache: bool) -> Predictor:
    size = rows.ids.shape
    if model.config.family == "ar":
        return CausalPredictor(model, *size)
    if model.config.family == "mdlm":
        return WindowPredictor(model, rows.length)
    return (BlockPredictor if cache else UncachedBlockPredictor)(model, *size)


def start_rows(
    model: Model, prompts: Sequence[Prompt], settings: DecodeSettings, seed: int | Sequence[int] | None
) -> list[Row]:
    """Tokenise and check prompts; an empty one is a single end-of-text token."""
    settings.check(model.config)
    rows = []
    for prompt, row_seed in zip(prompts, seeds_of(seed, len(prompts)), strict=True):
        ids = ids_of(model, prompt) or [model.config.eot_id]
        rows.append(Row(ids, settings.new_tokens(len(ids), model.config), row_seed))
    return rows


def settings_of(settings: DecodeSettings | None, options: dict) -> DecodeSettings:
    if settings is not None and options:
        raise ConfigError(f"give either settings or single options, not both: {', '.join(options)}")
    unknown = options.keys() - {field.name for field in fields(DecodeSettings)}
    if unknown:
        raise ConfigError(f"unknown decoding option: {', '.join(sorted(unknown))}")
    return settings or DecodeSettings(**options)


def seeds_of(seed: int | Sequence[int] | None, rows: int) -> list[int]:
    if seed is None:
        seed = secrets.randbits(31)
    if _is_int(seed):
        seeds = [int(seed) + row for row in range(rows)]
    elif isinstance(seed, Sequence) and all(map(_is_int, seed)):
        seeds = [int(one) for one in seed]
    else:
        raise ConfigError(f"a seed must be a whole number or a list of them, got {seed!r}")
    if len(seeds) != rows:
        raise ConfigError(f"{len(seeds)} seeds for {rows} prompts: give one seed, or one for each prompt")
    if not all(-(2**63) <= one < 2**63 for one in seeds):
        raise ConfigError("a seed must fit into 64 bits")
    return seeds


def _is_int(value: object) -> TypeGuard[SupportsInt]:
    """A whole number of any library, but no bool."""
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (len(prompts) > 0 and _is_int(prompts[0])):
        return [prompts]  # type: ignore[list-item]
    if not prompts:
        raise ConfigError("no prompts")
    return list(prompts)  # type: ignore[arg-type]


def ids_of(model: Model, prompt: Prompt) -> list[int]:
    if isinstance(prompt, str):
        if model.tokenizer is None:
            raise ConfigError(
                "this model has no tokenizer: give token ids, or put its tokenizer.json into its folder"
            )
        return model.tokenizer.encode(prompt)
    if not all(_is_int(id_) and 0 <= int(id_) < model.config.mask_id for id_ in prompt):
        raise ConfigError(f"prompt ids must be whole numbers in 0..{model.config.mask_id - 1}")
    return [int(id_) for id_ in prompt]


def _text(model: Model, ids: list[int]) -> str:
    return "" if model.tokenizer is None else model.tokenizer.decode(ids)

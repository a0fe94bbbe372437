"""What is asked of the engine, checked against the model, and how far each request has come.

Everything here lives on the host; `state` holds what the device knows of the same rows.
"""

import difflib
import operator
import reprlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, SupportsIndex, TypeGuard

from dadlm.decode.settings import DecodeSettings
from dadlm.errors import ConfigError
from dadlm.model import Model, ModelConfig

Prompt = str | Sequence[int]
Gap = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Request:
    """A text to complete, or one whose gaps are to be filled."""

    ids: tuple[int, ...]
    """Tokens of the prompt; with gaps the whole text, with anything at the gaps."""
    gaps: tuple[Gap, ...] = ()
    """(first, length) of the positions to fill, in order; empty: complete the prompt."""
    settings: DecodeSettings
    """How to decode."""
    seed: int
    """The same request with the same seed gives the same text, whatever is decoded beside it."""


class Row:
    """A request in work: its text so far, what is open, and what it took.

    A row can be taken out of an engine at any time and put into another: it reads its text again and does its
    block again, with the same random numbers.
    """

    def __init__(self, model: Model, request: Request) -> None:
        """Check a request; an empty prompt is a single end-of-text token."""
        request.settings.check(model.config)
        config, self.settings, self.gaps = model.config, request.settings, list(request.gaps)
        self.family, self.seed, self._end_ids = config.family, seeds_of(request.seed, 1)[0], model.end_ids
        if self.gaps:
            prompt = _text_with_gaps(model, request)
            self.new_tokens, self.length = sum(length for _, length in self.gaps), len(prompt)
        else:
            prompt = ids_of(model, request.ids) or [config.eot_id]
            self.new_tokens = self.settings.new_tokens(len(prompt), config)
            self.length = len(prompt) + self.new_tokens
        self.prompt = len(prompt)
        self.block = self.length if self.family == "mdlm" else config.block
        width = -(-self.length // self.block) * self.block
        self.ids = prompt + [config.eot_id] * (width - len(prompt))
        # Behind the text all is open: what is written there to the end of the block is cut off again.
        self.open = [False] * self.prompt + [True] * (width - self.prompt)
        for first, length in self.gaps:
            self.open[first : first + length] = [True] * length
        first_open, self.end = (
            (self.gaps[0][0], sum(self.gaps[-1])) if self.gaps else (self.prompt, self.length)
        )
        self.start = self.first = 0 if self.family == "mdlm" else first_open // self.block * self.block
        self.forward_passes = self.cache_passes = self.cycles = 0
        self.finished: Literal["stop", "length"] | None = None
        self.rewind()

    def rewind(self) -> None:
        """Forget the keys and values, and the block in work."""
        self.written, self.busy, self.passes_of_block = 0, False, 0

    @property
    def steps(self) -> int:
        """Of the random sampler, for each block."""
        return self.settings.steps or (self.new_tokens if self.family == "mdlm" else self.block)

    @property
    def to_write(self) -> int:
        """Tokens before the block whose keys and values are missing."""
        if self.family == "mdlm":
            return 0
        # An autoregressive model reads the last token in order to predict the next.
        return self.first - int(self.family == "ar") - self.written

    @property
    def ready(self) -> bool:
        """Whether a forward pass can decide something."""
        return self.busy and self.to_write == 0

    def mark_written(self, tokens: int) -> None:
        """Keys and values of so many tokens more are in the cache."""
        self.written += tokens
        if self.family in ("bd3lm", "dadlm"):
            self.cache_passes = max(self.cache_passes, (self.written - self.start) // self.block)

    @property
    def tokens(self) -> list[int]:
        """What was written: up to and including end-of-text, or the whole text if it had gaps."""
        if self.gaps:
            return self.ids[: self.length]
        new = self.ids[self.prompt : min(self.length, self.first + (self.block if self.finished else 0))]
        return self.up_to_end(new) if self.finished == "stop" else new

    def up_to_end(self, ids: list[int]) -> list[int]:
        """Tokens up to and including the first that ends a text; all of them if none does."""
        place = next((place for place, id_ in enumerate(ids) if id_ in self._end_ids), len(ids))
        return ids[: place + 1]

    def ends_with(self, id_: int) -> bool:
        return id_ in self._end_ids

    def commit(self, first: int, over: bool, ids: Sequence[int], forward_passes: int) -> list[int]:
        """Take tokens `ids` from the block in work on, after which the row stands at `first`, or is over.

        Returns the positions that are new to the text.
        """
        last = min(first + (self.block if over else 0), self.first + len(ids))
        self.ids[self.first : last] = ids[: last - self.first]
        new = [p for p in range(self.first, min(last, self.length)) if self.open[p]]
        if over:
            self.finished = "stop" if self.gaps else "length"
        if not self.gaps and any(self.ends_with(self.ids[p]) for p in new):
            new = new[: len(self.up_to_end([self.ids[p] for p in new]))]
            self.finished = "stop"
        if self.family == "ar":
            self.written = first - 1  # each pass has read the token before its own
        self.busy = not over and (self.family == "mdlm" or first == last)
        self.first, self.forward_passes, self.passes_of_block = first, forward_passes, 0
        return new


def settings_of(settings: DecodeSettings | None, options: Mapping[str, Any]) -> DecodeSettings:
    """Settings that were given whole, or as single options."""
    if settings is not None and not isinstance(settings, DecodeSettings):
        kind = type(settings).__name__
        raise ConfigError(f"settings must be a DecodeSettings, got {kind}; single options go by their names")
    if settings is not None and options:
        raise ConfigError(f"give either settings or single options, not both: {', '.join(options)}")
    valid = list(DecodeSettings.__dataclass_fields__)
    for name in sorted(options.keys() - set(valid)):
        near = difflib.get_close_matches(name, valid, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise ConfigError(f"unknown decoding option: {name}{hint} Valid options: {', '.join(valid)}")
    return settings or DecodeSettings(**options)


def seeds_of(seed: int | Sequence[int] | None, rows: int) -> list[int]:
    """One seed for each row: s gives row i the seed s + i."""
    if seed is None:
        seed = secrets.randbits(31)
    if is_int(seed):
        seeds = [int(seed) + row for row in range(rows)]
    elif isinstance(seed, Sequence) and all(map(is_int, seed)):
        seeds = [int(one) for one in seed]
    else:
        raise ConfigError(f"a seed must be a whole number or a list of them, got {seed!r}")
    if len(seeds) != rows:
        raise ConfigError(f"{len(seeds)} seeds for {rows} prompts: give one seed, or one for each prompt")
    if not all(-(2**63) <= one < 2**63 for one in seeds):
        raise ConfigError("a seed must fit into 64 bits")
    return seeds


def is_int(value: object) -> TypeGuard[SupportsIndex]:
    """A whole number of any library, but no bool, and no array with one in it."""
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return not isinstance(value, bool) and getattr(value, "ndim", 0) == 0


def prompts_of(prompts: object) -> list[Prompt]:
    """The prompts in whatever can be gone through: lists, arrays, generators; or the only one."""
    if isinstance(prompts, str):
        return [prompts]
    if not _is_list(prompts):
        raise ConfigError(f"prompts must be texts or lists of token ids, got {reprlib.repr(prompts)}")
    found = list(prompts)
    if not found:
        raise ConfigError("no prompts")
    return [found] if is_int(found[0]) else found


def _is_list(value: object) -> TypeGuard[Iterable[Any]]:
    """Something with items: neither bytes, whose items are numbers, nor a tensor that is one number."""
    return isinstance(value, Iterable) and not isinstance(value, bytes) and getattr(value, "ndim", 1) > 0


def ids_of(model: Model, prompt: Prompt) -> list[int]:
    if isinstance(prompt, str):
        if model.tokenizer is None:
            raise ConfigError(
                "this model has no tokenizer: give token ids, or put its tokenizer.json into its folder"
            )
        return model.tokenizer.encode(prompt)
    ids: list[Any] = list(prompt) if _is_list(prompt) else [None]
    if not all(is_int(id_) and 0 <= int(id_) < model.config.mask_id for id_ in ids):
        raise ConfigError(
            "a prompt must be a text or a list of token ids, whole numbers in "
            f"0..{model.config.mask_id - 1}; got {reprlib.repr(prompt)}"
        )
    return [int(id_) for id_ in ids]


def _text_with_gaps(model: Model, request: Request) -> list[int]:
    """The text of a request with gaps, with end-of-text in place of whatever stands there."""
    if request.settings.max_new_tokens is not None:
        raise ConfigError("max_new_tokens belongs to completions: the gaps say how much is written")
    text = list(request.ids)
    _check_gaps(text, request.gaps, model.config)
    for first, length in request.gaps:
        text[first : first + length] = [model.config.eot_id] * length
    return ids_of(model, text)


def _check_gaps(ids: list[int], gaps: Sequence[Gap], config: ModelConfig) -> None:
    if config.family == "ar":
        raise ConfigError(
            "an autoregressive model cannot fill gaps: it never sees what follows them; use another family"
        )
    if len(ids) > config.context:
        raise ConfigError(f"the text has {len(ids)} tokens, the context {config.context}: shorten it")
    end = 1  # the first token of a text is never predicted
    for first, length in gaps:
        if first < end or length < 1 or first + length > len(ids):
            raise ConfigError(
                f"gap ({first}, {length}) must have a length, lie in positions {end}..{len(ids) - 1} and "
                "follow the gap before it; a text that begins with a gap needs an end-of-text token first"
            )
        end = first + length

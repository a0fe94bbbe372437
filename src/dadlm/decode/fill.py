"""Gaps anywhere in a text → the whole text.

Known tokens of a block are anchors. A block model (bd3lm, dadlm) fills its blocks from left to right: a gap
is filled knowing the text before its block and the known tokens inside its block; blocks that follow are not
seen. MDLM sees the whole text. Where the text ends inside its last block, that block is written to its end
and cut, as in completions. Blocks without gaps are only read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dadlm.decode.generate import decode, ids_of, seeds_of, settings_of
from dadlm.decode.rows import Row
from dadlm.decode.settings import DecodeSettings
from dadlm.errors import ConfigError
from dadlm.model import Model, ModelConfig

Gap = tuple[int, int]


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


def fill(
    model: Model,
    ids: Sequence[int],
    gaps: Sequence[Gap],
    *,
    seed: int | None = None,
    settings: DecodeSettings | None = None,
    **options,
) -> Filled:
    """Fill the gaps (first, length) of a text `ids`, which may have anything there."""
    settings = settings_of(settings, options)
    row = start_gaps(model, ids, gaps, settings, seeds_of(seed, 1)[0])
    for _ in decode(model, [row], settings):
        pass
    return Filled(
        text="" if model.tokenizer is None else model.tokenizer.decode(row.tokens),
        tokens=row.tokens,
        gaps=[row.tokens[first : first + length] for first, length in row.gaps],
        forward_passes=row.forward_passes,
        cache_passes=row.cache_passes,
        seed=row.seed,
    )


def start_gaps(
    model: Model, ids: Sequence[int], gaps: Sequence[Gap], settings: DecodeSettings, seed: int
) -> Row:
    """Check a text with gaps and make a row of it."""
    settings.check(model.config)
    if settings.max_new_tokens is not None:
        raise ConfigError("max_new_tokens belongs to completions: the gaps say how much is written")
    text, gaps = list(ids), [(int(first), int(length)) for first, length in gaps]
    _check(text, gaps, model.config)
    for first, length in gaps:  # whatever is there: the mask token, too
        text[first : first + length] = [model.config.eot_id] * length
    text = ids_of(model, text)
    return Row(text, sum(length for _, length in gaps), seed, gaps=gaps)


def _check(ids: list[int], gaps: Sequence[Gap], config: ModelConfig) -> None:
    if config.family == "ar":
        raise ConfigError(
            "an autoregressive model cannot fill gaps: it never sees what follows them; use another family"
        )
    if len(ids) > config.context:
        raise ConfigError(f"the text has {len(ids)} tokens, the context {config.context}: shorten it")
    if not gaps:
        raise ConfigError("no gaps: give (first, length) of at least one")
    end = 1  # the first token of a text is never predicted
    for first, length in gaps:
        if first < end or length < 1 or first + length > len(ids):
            raise ConfigError(
                f"gap ({first}, {length}) must have a length, lie in positions {end}..{len(ids) - 1} and "
                "follow the gap before it; a text that begins with a gap needs an end-of-text token first"
            )
        end = first + length

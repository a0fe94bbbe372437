"""From a data configuration to tokenizer and rows."""

from collections.abc import Sequence
from functools import partial
from itertools import chain

from dadlm.errors import ConfigError, DataError
from dadlm.tokens import (
    DocumentRows,
    Mixture,
    Rows,
    Tokenizer,
    parse_mixture,
    prepare,
    read_pieces,
    train_bpe,
)
from dadlm.train.config import DataConfig

_MOST_IDS = 2**24


def load_tokenizer(data: DataConfig) -> Tokenizer:
    """Train or load the tokenizer that the configuration names."""
    if not data.tokenizer.startswith("bpe:"):
        return Tokenizer.load(data.tokenizer)
    size = data.tokenizer.removeprefix("bpe:")
    if not size.isdecimal() or not 257 <= int(size) <= _MOST_IDS:
        bounds = f"at least 257 (256 bytes and end-of-text) and at most {_MOST_IDS}"
        raise ConfigError(f"tokenizer bpe:SIZE needs a size of {bounds}, got {size!r}")
    sources = [source for _, source in parse_mixture(_source(data))]
    pieces = chain.from_iterable(read_pieces(source, data.text_field) for source in sources)
    return train_bpe((piece.text for piece in pieces), int(size), show_progress=False)


def load_rows(data: DataConfig, tokenizer: Tokenizer, context: int) -> tuple[Rows, Rows]:
    """Training and validation rows; without validation text, the end of each training text is held out."""
    weights, train = _prepare(data, _source(data), "train", tokenizer, context)
    if data.valid is not None:
        valid_weights, valid = _prepare(data, data.valid, "validation", tokenizer, context)
    else:
        split = [_hold_out(rows, data.valid_share) for rows in train]
        valid_weights, (train, valid) = weights, zip(*split, strict=True)
    return (
        train[0] if len(train) == 1 else Mixture(train, weights),
        valid[0] if len(valid) == 1 else Mixture(valid, valid_weights).round(),
    )


def _prepare(
    data: DataConfig, source: str, split: str, tokenizer: Tokenizer, context: int
) -> tuple[Sequence[float], Sequence[Rows]]:
    """Weight and rows of each part of a source."""
    kind = DocumentRows if data.rows == "documents" else Rows
    weights, sources = zip(*parse_mixture(source), strict=True)
    make = partial(prepare, tokenizer=tokenizer, folder=data.cache, text_field=data.text_field, split=split)
    return weights, [kind.from_shards(make(one), context) for one in sources]


def _hold_out(rows: Rows, share: float) -> tuple[Rows, Rows]:
    held_out = max(1, round(len(rows) * share))
    if len(rows) < 2:
        raise DataError(
            f"the text gives a single row of {rows.context} tokens: nothing is left to hold out for "
            "validation; give more text, a shorter context, or validation text"
        )
    if held_out == len(rows):
        raise ConfigError(f"valid_share {share} holds out all {len(rows)} rows; lower it")
    border = rows.border(len(rows) - held_out)
    return rows.cut(0, border), rows.cut(border, len(rows))


def _source(data: DataConfig) -> str:
    if not data.train:
        raise ConfigError(
            "no training text: pass --data.train FILE (.txt, .jsonl, .jsonl.zst, .parquet, or hf:NAME)"
        )
    return data.train

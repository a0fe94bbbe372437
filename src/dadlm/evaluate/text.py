"""A source of text as the rows that an evaluation reads, the same that training validates on."""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dadlm import counter
from dadlm.errors import ConfigError, DataError
from dadlm.model import Model
from dadlm.tokens import Rows, prepare


def rows_of(
    model: Model,
    source: str,
    *,
    length: int | None = None,
    cache: str = ".dadlm-cache",
    text_field: str = "text",
    quiet: bool = True,
) -> tuple[Rows, dict[str, Any]]:
    """The rows of a text file, folder, pattern or hf:NAME, and what a result says of them.

    Rows have `length` tokens, or the model's context; a text shorter than one row is one shorter row.
    """
    if not source:
        raise ConfigError("no text: pass --data FILE (.txt, .jsonl, .jsonl.zst, .parquet, or hf:NAME)")
    if model.tokenizer is None:
        raise ConfigError("this model has no tokenizer: put its tokenizer.json into the model's folder")
    length = model.config.context if length is None else length
    check_length(model, length)
    shards = prepare(
        source, model.tokenizer, cache, text_field=text_field, split="validation", progress=not quiet
    )
    unit = _unit(model)
    longest = shards.tokens // unit * unit
    if longest < 2:
        raise DataError(
            f"{source} has {shards.tokens} tokens where a row needs at least {max(2, unit)}; give more text"
        )
    rows = Rows.from_shards(shards, min(length, longest))
    return rows, about(rows, source)


def about(rows: Rows, source: str | None = None, index: Sequence[int] | None = None) -> dict[str, Any]:
    """What a result says of the text it was measured on; the hash is of the rows used, `index` or all."""
    digest = hashlib.sha256()
    for row in range(len(rows)) if index is None else index:
        digest.update(rows[row].numpy().tobytes())
    return {
        "source": source,
        "rows": len(rows),
        "row_length": rows.context,
        "fingerprint": digest.hexdigest()[:16],
    }


def documents_of(rows: Rows, eot_id: int) -> Tensor:
    """[R]: the document in which each row begins, counted by the ends of text before it.

    Rows of one document are alike, so intervals draw whole documents. Where all is one document, runs of
    about √R neighbouring rows stand in for them.
    """
    ends = torch.tensor([int((rows[row] == eot_id).sum()) for row in range(len(rows))])
    document = ends.cumsum(0) - ends
    if not document.any():
        return torch.arange(len(rows)) // round(len(rows) ** 0.5)
    return document


def pick(rows: Rows, count: int | None, seed: int) -> list[int]:
    """Which rows to evaluate: `count` drawn from all over the text, in its order, or all there are.

    The first ones would come from few documents.
    """
    count = take(rows, count)
    if count == len(rows):
        return list(range(count))
    return sorted(counter.permute(torch.arange(count), len(rows), seed, 0).tolist())


def take(rows: Rows, count: int | None) -> int:
    """How many rows to evaluate: the first `count`, or all there are."""
    if count is not None and count < 1:
        raise ConfigError(f"count must be at least 1, got {count}")
    return len(rows) if count is None else min(count, len(rows))


def check_length(model: Model, length: int) -> None:
    """Refuse rows that do not fit a model."""
    config, unit = model.config, _unit(model)
    if not 2 <= length <= config.context or length % unit:
        multiple = f" and a multiple of its block size {unit}" if unit > 1 else ""
        raise ConfigError(
            f"rows of {length} tokens do not fit this {config.family} model: "
            f"their length must be 2 to {config.context}{multiple}; choose it with --length"
        )


def _unit(model: Model) -> int:
    """A row is made of whole blocks; where it is one block itself (MDLM) it may have any length."""
    return model.config.block_size if model.config.family in ("bd3lm", "dadlm") else 1

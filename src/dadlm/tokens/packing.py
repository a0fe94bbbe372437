"""Text to shards: read, tokenise in batches, write, and only then give the folder its name.

The name is a hash over everything that could change the tokens, so two settings never share a folder and a
finished folder is reused at once. Memory stays constant whatever the source's size. Knows nothing of rows.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dadlm.errors import DataError
from dadlm.tokens import sources
from dadlm.tokens.building import building
from dadlm.tokens.pieces import Piece
from dadlm.tokens.progress import Meter
from dadlm.tokens.shards import VERSION, Index, Shards
from dadlm.tokens.tokenizer import Tokenizer
from dadlm.tokens.writer import ShardWriter

_BATCH = 1 << 20  # characters tokenised at once: the library needs some 30 bytes for each of them


def prepare(
    source: str | os.PathLike[str],
    tokenizer: Tokenizer,
    folder: str | os.PathLike[str],
    *,
    text_field: str = "text",
    split: str = "train",
    documents: int | None = None,
    shard_tokens: int = 1 << 26,
    progress: bool = True,
) -> Shards:
    """The tokens of a source as shards under `folder`, made now or found finished from before.

    `documents` takes only that many from the start; `shard_tokens` is the most that one file holds. Each
    document is followed by end-of-text.
    """
    if (documents is not None and documents < 1) or shard_tokens < 1:
        raise DataError(f"documents ({documents}) and shard_tokens ({shard_tokens}) must be at least 1")
    options = {"text_field": text_field, "documents": documents, "shard_tokens": shard_tokens}
    identity = {
        "tokenizer": tokenizer.fingerprint,
        "options": options,
        "source": sources.describe(source, split),
    }
    target = Path(folder) / _folder_name(os.fspath(source), identity)
    if not target.exists():  # it exists only when finished
        pieces = _first(sources.read_pieces(source, text_field, split), documents)
        with building(target) as place, Meter(target.name, sources.size_of(source), progress) as meter:
            index = _write_tokens(
                pieces, tokenizer, ShardWriter(place, tokenizer.vocab_size, shard_tokens), meter
            )
            tokenizer.save(place)
            Index(**index, identity=identity).write(place)
    return Shards.open(target)


def _write_tokens(
    pieces: Iterable[Piece], tokenizer: Tokenizer, writer: ShardWriter, meter: Meter
) -> dict[str, Any]:
    """Write all pieces, end-of-text after each document; the counts for the index."""
    documents = text_bytes = 0
    with writer:
        for batch in _batches(pieces):
            rows = tokenizer.encode_batch([piece.text for piece in batch])
            for piece, ids in zip(batch, rows, strict=True):
                writer.write([*ids, tokenizer.eot_id] if piece.ends else ids)
                documents += piece.ends
                text_bytes += len(piece.text.encode())
            meter.update(batch[-1].read, writer.tokens, text_bytes)
    return {
        "dtype": writer.dtype.str,
        "shards": writer.counts,
        "tokens": writer.tokens,
        "documents": documents,
        "text_bytes": text_bytes,
        "vocab_size": tokenizer.vocab_size,
        "eot_id": tokenizer.eot_id,
    }


def _folder_name(source: str, identity: dict[str, Any]) -> str:
    """`<stem>-<16 hex digits>`: the stem for people, the digits for what the tokens depend on."""
    digest = hashlib.sha256(json.dumps({"version": VERSION, **identity}, sort_keys=True).encode()).hexdigest()
    name = source if source.startswith("hf:") else Path(source).resolve().name.split(".")[0]
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:40] or "text"
    return f"{stem}-{digest[:16]}"


def _first(pieces: Iterator[Piece], documents: int | None) -> Iterator[Piece]:
    """The pieces of the first so many documents, or all."""
    done = 0
    for piece in pieces:
        yield piece
        done += piece.ends
        if done == documents:
            return


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.text) + 64  # a share for the piece itself: there may be millions of tiny ones
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch

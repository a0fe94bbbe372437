"""Text to shards: read, tokenise in batches, write, and only then give the folder its name.

The name is a hash of everything that could change the tokens, so a finished folder is reused at once. A
killed run resumes after its last finished shard. Memory does not depend on the source's size.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress, TextColumn, TransferSpeedColumn

from dadlm.errors import DataError
from dadlm.tokens import sources
from dadlm.tokens.encoding import Encoded, encode_batches
from dadlm.tokens.pieces import Piece
from dadlm.tokens.shards import VERSION, Index, Shards
from dadlm.tokens.tokenizer import Tokenizer
from dadlm.tokens.unfinished import unfinished
from dadlm.tokens.writer import JOURNAL, ShardWriter

_BATCH = 1 << 20  # characters tokenised at once: the library needs some 30 bytes for each of them


def prepare(
    source: str | os.PathLike[str],
    tokenizer: Tokenizer,
    folder: str | os.PathLike[str],
    *,
    text_field: str = "text",
    split: str = "train",
    shard_tokens: int = 1 << 24,
    workers: int = 1,
    progress: bool = True,
) -> Shards:
    """The tokens of a source as shards under `folder`, made now or found there.

    A file holds at most `shard_tokens`, which is also what a kill may cost. `workers` processes tokenise; if
    it is 1, this one does. End-of-text follows each document.
    """
    for name, value in {"shard_tokens": shard_tokens, "workers": workers}.items():
        if value < 1:
            raise DataError(f"{name} must be at least 1, got {value}")
    identity = {
        "tokenizer": tokenizer.fingerprint,
        "options": {"text_field": text_field, "documents": None, "shard_tokens": shard_tokens},
        "source": sources.describe(source, split),
    }
    target = Path(folder) / _folder_name(os.fspath(source), identity)
    if not target.exists():  # it exists only when finished
        with unfinished(target, JOURNAL) as place:
            if place is not None:
                for torn in place.glob(".tokenizer-*"):  # a kill while the tokenizer was being written
                    shutil.rmtree(torn)
                with ShardWriter(place, tokenizer.vocab_size, shard_tokens) as writer:
                    pieces = sources.read_pieces(source, text_field, split, writer.place.anchor)
                    pieces = islice(pieces, writer.place.pieces, None)  # those before are written
                    encoded = encode_batches(_batches(pieces), tokenizer, tokenizer.save(place), workers)
                    with _progress(progress) as bar:
                        bar.add_task(f"tokenising {target.name}", total=sources.size_of(source), tokens=0)
                        _write_tokens(encoded, tokenizer.eot_id, writer, bar)
                Index(
                    dtype=writer.dtype.str,
                    shards=[line.tokens for line in writer.lines],
                    sha256=[line.sha256 for line in writer.lines],
                    tokens=writer.tokens,
                    documents=writer.place.documents,
                    text_bytes=writer.place.text_bytes,
                    vocab_size=tokenizer.vocab_size,
                    eot_id=tokenizer.eot_id,
                    identity=identity,
                ).write(place)
    return Shards.open(target)


def _write_tokens(encoded: Encoded, eot_id: int, writer: ShardWriter, bar: Progress) -> None:
    """Write all pieces, end-of-text after each document."""
    with closing(encoded):
        for batch, rows in encoded:
            for piece, ids in zip(batch, rows, strict=True):
                writer.write(piece, np.append(ids, eot_id) if piece.ends else ids)
            read = batch[-1].read or writer.place.text_bytes
            bar.update(bar.task_ids[0], completed=read, tokens=writer.tokens)
    writer.finish()


def _progress(show: bool) -> Progress:
    """A bar on standard error: share of the source, bytes per second, tokens so far."""
    columns = (TextColumn("{task.fields[tokens]:,} tokens"), TransferSpeedColumn())
    console = Console(stderr=True)
    return Progress(*Progress.get_default_columns(), *columns, console=console, disable=not show)


def _folder_name(source: str, identity: dict[str, Any]) -> str:
    """`<stem>-<16 hex digits>`: the stem for people, the digits a hash of what the tokens depend on."""
    digest = hashlib.sha256(json.dumps({"version": VERSION, **identity}, sort_keys=True).encode()).hexdigest()
    name = source if source.startswith("hf:") else Path(source).resolve().name.split(".")[0]
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:40] or "text"
    return f"{stem}-{digest[:16]}"


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.text) + 64  # 64 for the piece itself: there may be millions of tiny ones
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch

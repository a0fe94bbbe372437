"""Writes ids to shard files of bounded size, in order, with a journal of finished ones to resume from."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dadlm.tokens.pieces import Piece
from dadlm.tokens.shards import file_hash, shard_name

JOURNAL = "journal.jsonl"


@dataclass(frozen=True)
class Place:
    """How much of a source is in the shards."""

    anchor: Any = None
    """Where reading can resume; see `Piece`."""
    pieces: int = 0
    """Whole pieces after the anchor that are in the shards."""
    ids: int = 0
    """Ids of the next piece that are in the shards."""
    documents: int = 0
    """Whole documents from the beginning of the source."""
    text_bytes: int = 0
    """UTF-8 bytes of whole pieces from the beginning of the source."""


@dataclass(frozen=True)
class Line:
    """A line of the journal: a finished shard, and the place reached with it."""

    tokens: int
    sha256: str
    place: Place = field(default_factory=Place)


class ShardWriter:
    """Takes the pieces after `place`; begins a new file whenever one holds `shard_tokens`."""

    def __init__(self, folder: Path, vocab_size: int, shard_tokens: int):
        self.dtype = np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
        self.lines = _read_journal(folder, self.dtype.itemsize)
        self.place = self.lines[-1].place if self.lines else Place()
        self.tokens = sum(line.tokens for line in self.lines)
        self._folder, self._limit = folder, shard_tokens
        self._file: BinaryIO | None = None
        self._held, self._hash = 0, hashlib.sha256()  # of the file that is open

    def write(self, piece: Piece, ids: Sequence[int] | np.ndarray) -> None:
        if piece.anchor != self.place.anchor:
            self.place = replace(self.place, anchor=piece.anchor, pieces=0)
        array = np.asarray(ids, dtype=self.dtype)[self.place.ids :]  # the rest is in an earlier shard
        while len(array):
            part, array = np.split(array, [self._limit - self._held])
            if self._file is None:
                self._file = _create(self._folder / shard_name(len(self.lines)))
            data = part.tobytes()
            self._file.write(data)
            self._hash.update(data)
            self._held += len(part)
            self.tokens += len(part)
            self.place = replace(self.place, ids=self.place.ids + len(part))
            if self._held == self._limit:
                self.finish()
        self.place = Place(
            anchor=self.place.anchor,
            pieces=self.place.pieces + 1,
            documents=self.place.documents + piece.ends,
            text_bytes=self.place.text_bytes + len(piece.text.encode()),
        )

    def finish(self) -> None:
        """End the current file; it is on disk before the journal says so."""
        if self._file is None:
            return
        _sync(self._file)
        self._file.close()
        self.lines.append(Line(self._held, self._hash.hexdigest(), self.place))
        with (self._folder / JOURNAL).open("ab") as journal:
            journal.write(json.dumps(asdict(self.lines[-1])).encode() + b"\n")
            _sync(journal)
        self._file, self._held, self._hash = None, 0, hashlib.sha256()

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, *_: object) -> None:
        """An unfinished file is not kept: the next run writes it anew."""
        if self._file is not None:
            self._file.close()


def _create(path: Path) -> BinaryIO:
    return path.open("wb")


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _read_journal(folder: Path, item_size: int) -> list[Line]:
    """The shards that can be kept; later lines are dropped from the file."""
    journal, lines, good = folder / JOURNAL, [], 0
    if not journal.exists():
        return []
    with journal.open("r+b") as stream:
        for text in stream:
            try:
                line = Line(**(json.loads(text) | {"place": Place(**json.loads(text)["place"])}))
            except (ValueError, TypeError, KeyError):  # torn by a kill
                break
            shard = folder / shard_name(len(lines))
            whole = shard.is_file() and shard.stat().st_size == line.tokens * item_size
            if not text.endswith(b"\n") or not whole or file_hash(shard) != line.sha256:
                break
            lines.append(line)
            good += len(text)
        stream.truncate(good)
    return lines

"""Ids into shard files of bounded size, in order, with a journal of the finished ones.

The journal has a line for each whole shard, written when the shard is on the disk; a killed run resumes after
the last one. Reading it stops at the first line that is torn, or whose shard is not what the line says.
"""

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
    """How far a source is in the shards."""

    anchor: Any = None
    """Where reading may begin to come here; see `Piece`."""
    pieces: int = 0
    """Pieces from there on that are in the shards whole."""
    ids: int = 0
    """Ids of the next piece that are in the shards."""
    documents: int = 0
    """Whole documents since the beginning of the source."""
    text_bytes: int = 0
    """UTF-8 bytes of whole pieces since the beginning of the source."""


@dataclass(frozen=True)
class Line:
    """A finished shard, and the place that was reached with it."""

    tokens: int
    sha256: str
    place: Place = field(default_factory=Place)


class ShardWriter:
    """Takes the pieces that follow `place`; begins a new file whenever one holds `shard_tokens`."""

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
        array = np.asarray(ids, dtype=self.dtype)[self.place.ids :]  # those before went into an earlier shard
        while len(array):
            part = array[: self._limit - self._held]
            self._append(part)
            self.place = replace(self.place, ids=self.place.ids + len(part))
            if self._held == self._limit:
                self._finish()
            array = array[len(part) :]
        self.place = Place(
            anchor=self.place.anchor,
            pieces=self.place.pieces + 1,
            documents=self.place.documents + piece.ends,
            text_bytes=self.place.text_bytes + len(piece.text.encode()),
        )

    def finish(self) -> None:
        """End the last file: there is no more text."""
        if self._file is not None:
            self._finish()

    def _append(self, part: np.ndarray) -> None:
        if self._file is None:
            self._file = _create(self._folder / shard_name(len(self.lines)))
        data = part.tobytes()
        self._file.write(data)
        self._hash.update(data)
        self._held += len(part)
        self.tokens += len(part)

    def _finish(self) -> None:
        """The file is on the disk before the journal says so."""
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self.lines.append(Line(self._held, self._hash.hexdigest(), self.place))
        _add_line(self._folder, self.lines[-1])
        self._file, self._held, self._hash = None, 0, hashlib.sha256()

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, *_: object) -> None:
        """What is not finished is not kept: the next run writes it anew."""
        if self._file is not None:
            self._file.close()


def _create(path: Path) -> BinaryIO:
    return path.open("wb")


def _read_journal(folder: Path, item_size: int) -> list[Line]:
    """The shards that can be kept; lines after them are dropped from the file."""
    file, lines, good = folder / JOURNAL, [], 0
    if not file.exists():
        return []
    with file.open("r+b") as stream:
        for text in stream:
            line = _parse(text)
            if line is None or not _is_there(folder / shard_name(len(lines)), line, item_size):
                break
            lines.append(line)
            good += len(text)
        stream.truncate(good)
    return lines


def _add_line(folder: Path, line: Line) -> None:
    with (folder / JOURNAL).open("ab") as stream:
        stream.write(json.dumps(asdict(line)).encode() + b"\n")
        stream.flush()
        os.fsync(stream.fileno())


def _parse(text: bytes) -> Line | None:
    try:
        content = json.loads(text)
        return Line(**(content | {"place": Place(**content["place"])})) if text.endswith(b"\n") else None
    except (ValueError, TypeError, KeyError):  # cut off by a kill
        return None


def _is_there(file: Path, line: Line, item_size: int) -> bool:
    if not file.is_file() or file.stat().st_size != line.tokens * item_size:
        return False
    return file_hash(file) == line.sha256

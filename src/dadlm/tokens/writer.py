"""Ids into shard files of bounded size, in order, with a journal of the finished ones.

Knows nothing of text, indexes or folders' names.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from dadlm.tokens.journal import Line, Place, add_line, read_journal
from dadlm.tokens.pieces import Piece
from dadlm.tokens.shards import shard_name


class ShardWriter:
    """Takes the pieces that follow `place`; begins a new file whenever one holds `shard_tokens`."""

    def __init__(self, folder: Path, vocab_size: int, shard_tokens: int):
        self.dtype = np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
        self.lines = read_journal(folder, self.dtype.itemsize)
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
        add_line(self._folder, self.lines[-1])
        self._file, self._held, self._hash = None, 0, hashlib.sha256()

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What is not finished is not kept: the next run writes it anew."""
        if self._file is not None:
            self._file.close()


def _create(path: Path) -> BinaryIO:
    return path.open("wb")

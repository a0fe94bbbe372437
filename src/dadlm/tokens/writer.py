"""Ids into shard files of bounded size, in order. Knows nothing of text, indexes or folders' names."""

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from dadlm.tokens.shards import shard_name


class ShardWriter:
    """Appends ids; begins a new file whenever one holds `shard_tokens`."""

    def __init__(self, folder: Path, vocab_size: int, shard_tokens: int):
        self.dtype = np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
        self.counts: list[int] = []
        self._folder, self._limit = folder, shard_tokens
        self._file: BinaryIO | None = None

    @property
    def tokens(self) -> int:
        return sum(self.counts)

    def write(self, ids: Sequence[int]) -> None:
        array = np.asarray(ids, dtype=self.dtype)
        while len(array):
            if self._file is None or self.counts[-1] == self._limit:
                self._next()
            room = self._limit - self.counts[-1]
            assert self._file is not None
            self._file.write(array[:room].tobytes())
            self.counts[-1] += len(array[:room])
            array = array[room:]

    def close(self) -> None:
        """Force the last file to the disk, so that the folder's later renaming never precedes its content."""
        if self._file is not None:
            file, self._file = self._file, None
            with file:
                file.flush()
                os.fsync(file.fileno())

    def _next(self) -> None:
        self.close()
        self._file = _create(self._folder / shard_name(len(self.counts)))
        self.counts.append(0)

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _create(path: Path) -> BinaryIO:
    return path.open("wb")

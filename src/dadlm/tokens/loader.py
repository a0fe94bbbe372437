"""The token stream as rows of equal length. Knows nothing of text, masks, models, or the order of training.

Shapes: B rows of a batch, C context (ids in a row).
"""

import hashlib
from collections.abc import Sequence
from copy import copy
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from dadlm.errors import DataError
from dadlm.tokens.shards import Shards


class Rows:
    """Row i is ids [i·C, (i+1)·C) of the stream; documents run across rows, an incomplete last one is cut."""

    def __init__(self, arrays: Sequence[np.ndarray], context: int):
        tokens = sum(map(len, arrays))
        if context < 1:
            raise DataError(f"context {context} must be at least 1")
        if tokens < context:
            raise DataError(
                f"{tokens} tokens are fewer than one row of {context}: "
                f"shorten the context to at most {tokens} or give more text"
            )
        self.context = context
        self._arrays = list(arrays)
        self._starts = list(accumulate(map(len, arrays), initial=0))  # of each array, in the stream
        self._first, self._rows = 0, tokens // context

    @classmethod
    def from_shards(cls, shards: Shards, context: int) -> "Rows":
        return cls(shards.arrays, context)

    @classmethod
    def from_ids(cls, ids: Sequence[int] | np.ndarray | Tensor, context: int) -> "Rows":
        """Rows of ids in memory."""
        return cls([np.asarray(ids, dtype=np.int64).reshape(-1)], context)

    def __len__(self) -> int:
        return self._rows

    def cut(self, first: int, last: int) -> "Rows":
        """Rows first..last-1 as rows of their own, on the same memory."""
        if not 0 <= first < last <= len(self):
            raise DataError(f"rows {first}..{last} are not within the {len(self)} there are")
        part = copy(self)
        part._first, part._rows = self._first + first, last - first
        return part

    def border(self, near: int) -> int:
        """The row nearest to `near` with which a second part may begin: in a stream any."""
        return near

    def __getitem__(self, index: int) -> Tensor:
        """Row `index`, int64 [C]."""
        if not 0 <= index < self._rows:
            raise IndexError(f"row {index} of {self._rows}")
        return torch.from_numpy(self._row(self._first + index))

    def _row(self, number: int) -> np.ndarray:
        return self._read(number * self.context, self.context)

    def _read(self, start: int, count: int) -> np.ndarray:
        """`count` ids of the stream, int64."""
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        parts, missing = [], count
        for array, begin in zip(self._arrays[first:], self._starts[first:], strict=False):
            offset = max(0, start - begin)
            parts.append(array[offset : offset + missing])
            missing -= len(parts[-1])
            if missing == 0:
                break
        return np.concatenate(parts).astype(np.int64)

    def fingerprint(self) -> str:
        """Tells these rows from others: a hash of their number, length and some 64 of them."""
        digest = hashlib.sha256(f"{len(self)} {self.context}".encode())
        for index in range(0, len(self), max(1, len(self) // 64)):
            digest.update(self[index].numpy().tobytes())
        return digest.hexdigest()

    def batch(self, indices: Sequence[int] | Tensor) -> Tensor:
        """The rows at `indices`, int64 [B, C]."""
        return torch.stack([self[int(index)] for index in indices])

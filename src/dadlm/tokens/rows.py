"""Tokens as rows of equal length: a stream, or rows that never hold two documents.

B rows of a batch, C context (ids in a row).
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
    """Row i is ids [i·C, (i+1)·C) of the stream; documents run across rows, an incomplete row is dropped."""

    def __init__(self, arrays: Sequence[np.ndarray], context: int):
        if context < 1:
            raise DataError(f"context {context} must be at least 1")
        self.context, self._arrays = context, list(arrays)
        *self._starts, tokens = accumulate(map(len, arrays), initial=0)  # of each array, in the stream
        self._first, self._rows = 0, self._count(tokens)

    def _count(self, tokens: int) -> int:
        if tokens < self.context:
            raise DataError(
                f"{tokens} tokens are fewer than one row of {self.context}: "
                f"shorten the context to at most {tokens} or give more text"
            )
        return tokens // self.context

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
        """The row nearest to `near` at which the rows may be split: in a stream, any row."""
        return near

    def __getitem__(self, index: int) -> Tensor:
        """Row `index`, int64 [C]."""
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
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
        """A hash of the number of rows, their length, and about 64 of them."""
        digest = hashlib.sha256(f"{len(self)} {self.context}".encode())
        for index in range(0, len(self), max(1, len(self) // 64)):
            digest.update(self[index].numpy().tobytes())
        return digest.hexdigest()

    def batch(self, indices: Sequence[int] | Tensor) -> Tensor:
        """The rows at `indices`, int64 [B, C]."""
        return torch.stack([self[int(index)] for index in indices])


class DocumentRows(Rows):
    """Every document begins a row; its last row is padded with end-of-text, trained on like text."""

    def __init__(self, arrays: Sequence[np.ndarray], context: int, eot_id: int):
        self._eot = eot_id
        super().__init__(arrays, context)

    def _count(self, tokens: int) -> int:
        starts_of = zip(self._starts, self._arrays, strict=True)
        ends = [start + np.flatnonzero(array == self._eot) for start, array in starts_of]
        self._stops = np.concatenate(ends) + 1  # of each document, including its end-of-text
        rows = -(-np.diff(self._stops, prepend=0) // self.context)
        self._rows_before = np.concatenate([[0], np.cumsum(rows)])
        return int(rows.sum())

    @classmethod
    def from_shards(cls, shards: Shards, context: int) -> "DocumentRows":
        return cls(shards.arrays, context, shards.index.eot_id)

    def border(self, near: int) -> int:
        """Where a document begins, so that each is in one part as a whole."""
        begins = self._rows_before - self._first
        begins = begins[(begins > 0) & (begins < len(self))]
        if not len(begins):
            raise DataError(
                "rows of a single document cannot be split, and some have to be held out for validation: "
                "give validation text, or let rows be a stream"
            )
        return int(begins[np.abs(begins - near).argmin()])

    def _row(self, number: int) -> np.ndarray:
        document = int(np.searchsorted(self._rows_before, number, side="right")) - 1
        begin = int(self._stops[document - 1]) if document else 0
        start = begin + (number - int(self._rows_before[document])) * self.context
        ids = self._read(start, min(self.context, int(self._stops[document]) - start))
        return np.pad(ids, (0, self.context - len(ids)), constant_values=self._eot)

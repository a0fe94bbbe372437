"""Rows that never hold two documents. Knows nothing of text, masks or models.

C context (ids in a row).
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from dadlm.errors import DataError
from dadlm.tokens.loader import Rows
from dadlm.tokens.shards import Shards


class DocumentRows(Rows):
    """Every document begins a row; it is cut every C ids, and its last row is filled up with end-of-text.

    So no token sees another document. The filling is learned and counted like text.
    """

    def __init__(self, arrays: Sequence[np.ndarray], context: int, eot_id: int):
        if context < 1:
            raise DataError(f"context {context} must be at least 1")
        self.context, self._eot = context, eot_id
        self._arrays = list(arrays)
        self._starts = list(accumulate(map(len, arrays), initial=0))
        starts_of = zip(self._starts[:-1], arrays, strict=True)
        ends = [start + np.flatnonzero(array == eot_id) for start, array in starts_of]
        self._stops = np.concatenate(ends) + 1  # of each document, its end-of-text included
        rows = -(-np.diff(self._stops, prepend=0) // context)
        self._rows_before = np.concatenate([[0], np.cumsum(rows)])
        self._first, self._rows = 0, int(rows.sum())

    @classmethod
    def from_shards(cls, shards: Shards, context: int) -> "DocumentRows":
        return cls(shards.arrays, context, shards.index.eot_id)

    def border(self, near: int) -> int:
        """Where a document begins, so that each is wholly in one part."""
        begins = self._rows_before - self._first
        begins = begins[(begins > 0) & (begins < len(self))]
        if not len(begins):
            raise DataError(
                "rows of a single document cannot be parted, and some have to be held out for validation: "
                "give validation text, or let rows be a stream"
            )
        return int(begins[np.abs(begins - near).argmin()])

    def _row(self, number: int) -> np.ndarray:
        document = int(np.searchsorted(self._rows_before, number, side="right")) - 1
        begin = int(self._stops[document - 1]) if document else 0
        start = begin + (number - int(self._rows_before[document])) * self.context
        ids = self._read(start, min(self.context, int(self._stops[document]) - start))
        return np.pad(ids, (0, self.context - len(ids)), constant_values=self._eot)

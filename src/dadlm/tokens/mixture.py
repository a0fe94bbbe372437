"""Which rows training sees when, from one source or several in given shares: `0.7:a.jsonl.zst,0.3:b/`.

The order is a function of (seed, step) alone, however a step is split into micro-batches or processes.
"""

import re
from collections.abc import Sequence, Sized
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from dadlm.counter import permute
from dadlm.errors import ConfigError, DataError
from dadlm.tokens.rows import Rows

_ROUND = 1000  # samples in a round: shares are exact to a thousandth
_WEIGHT = r"(\d+\.?\d*|\.\d+):"


def parse_mixture(source: str) -> list[tuple[float, str]]:
    """(weight, source) of each part; a plain source is a mixture of one (./2:a.txt is a file)."""
    if not re.match(_WEIGHT, source):
        return [(1.0, source)]
    parts = [part.partition(":") for part in re.split(rf",(?={_WEIGHT})", source)[::2]]
    if not all(name and float(weight) > 0 for weight, _, name in parts):
        raise ConfigError(f"{source!r} is no mixture: expected WEIGHT:SOURCE,WEIGHT:SOURCE, weights above 0")
    return [(float(weight), name) for weight, _, name in parts]


class Mixture(Rows):
    """Rows of several sources, numbered one source after another.

    Samples for training come in rounds of 1,000, each with every source's exact share, shuffled anew. A
    source gives its rows epoch after epoch, at its own pace.
    """

    def __init__(self, parts: Sequence[Rows], weights: Sequence[float]):
        self.context, self._parts = parts[0].context, list(parts)
        *self._begins, self._rows = accumulate(map(len, parts), initial=0)
        self._first, self._slots = 0, _slots(weights)

    def _row(self, number: int) -> np.ndarray:
        part = int(np.searchsorted(self._begins, number, side="right")) - 1
        return self._parts[part][number - self._begins[part]].numpy()

    def cut(self, first: int, last: int) -> Rows:
        raise DataError("the rows of a mixture are not one text: split its sources instead")

    def order(self, place: Tensor, seed: int) -> Tensor:
        """The rows of the samples numbered `place`, int64."""
        turn = place // _ROUND
        slot = permute(place % _ROUND, _ROUND, seed, ~turn)  # ~: rounds are shuffled unlike epochs
        row = torch.empty_like(place)
        low = 0
        for part, size, begin in zip(self._parts, self._slots, self._begins, strict=True):
            own = (slot >= low) & (slot < low + size)
            given = turn[own] * size + slot[own] - low  # the source's own samples before this one
            row[own] = begin + permute(given % len(part), len(part), seed, given // len(part))
            low += size
        return row

    def round(self) -> Rows:
        """One round in memory, for validation, with every source in its share."""
        return Rows.from_ids(self.batch(self.order(torch.arange(_ROUND), 0)).flatten(), self.context)


def _slots(weights: Sequence[float]) -> list[int]:
    """How many samples of a round each source has; rounding leaves the rest to the largest remainders."""
    exact = [weight / sum(weights) * _ROUND for weight in weights]
    slots = [int(share) for share in exact]
    by_remainder = sorted(range(len(slots)), key=lambda part: slots[part] - exact[part])
    for part in by_remainder[: _ROUND - sum(slots)]:
        slots[part] += 1
    if 0 in slots:
        raise ConfigError(f"a share of {min(exact) / _ROUND:.2g} is too small for a mixture: at least 0.001")
    return slots


def training_rows(rows: Sized, step: int, batch_size: int, seed: int, start: int = 0) -> Tensor:
    """The rows of step `step`, int64 [B]; `start` rows were taken before the first step. Each epoch has every
    row once."""
    place = start + step * batch_size + torch.arange(batch_size, dtype=torch.int64)
    if isinstance(rows, Mixture):
        return rows.order(place, seed)
    size = len(rows)
    return permute(place % size, size, seed, place // size)

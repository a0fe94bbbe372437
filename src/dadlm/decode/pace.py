"""How much to draft: what has given most tokens a second, for batches of about this size.

Trees of any size, and none at all, give the same text (`verify`), so time may decide. Sizes are tried only
while all that trying has cost stays within a small share of the time spent.
"""

from dataclasses import dataclass, field

SIZES = (0, 4, 8, 16, 32, 64)
"""Nodes of a tree; 0: no draft, the target alone."""
_SHARE = 0.04  # of the time may go into trying
_GUESS = 4.0  # times a step of the target that a cycle may take which was not tried yet
_KEEP = 0.95  # of what was measured, with every new measurement: texts and machines change


@dataclass
class _Rate:
    """Of the cycles with one size; recent ones count more."""

    tokens: float = 0.0
    seconds: float = 0.0
    cycles: float = 0.0
    tried: int = 0

    @property
    def value(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    def add(self, seconds: float, tokens: int) -> None:
        self.tried += 1
        if self.tried > 1:  # the first compiles kernels and takes memory: not the pace of what follows
            self.tokens = _KEEP * self.tokens + tokens
            self.seconds = _KEEP * self.seconds + seconds
            self.cycles = _KEEP * self.cycles + 1


@dataclass
class _Batch:
    rates: dict[int, _Rate] = field(default_factory=lambda: {size: _Rate() for size in SIZES})
    seconds: float = 0.0
    lost: float = 0.0


class Pace:
    def __init__(self) -> None:
        self._batches: dict[int, _Batch] = {}

    def _of(self, rows: int) -> _Batch:
        return self._batches.setdefault(rows.bit_length(), _Batch())

    def best(self, rows: int) -> int:
        """The size that has been fastest."""
        rates = self._of(rows).rates
        return max(SIZES, key=lambda size: rates[size].value)

    def nodes(self, rows: int) -> int:
        """The size for the next cycle of so many rows."""
        batch = self._of(rows)
        alone, best = batch.rates[0], self.best(rows)
        if alone.tried < 3:
            return 0
        enough = 2 + max(rate.tried for rate in batch.rates.values()) // 64
        for size in SIZES:
            rate = batch.rates[size]
            cost = rate.seconds / rate.cycles if rate.cycles else _GUESS * alone.seconds / alone.cycles
            if rate.tried < enough and batch.lost + cost <= _SHARE * batch.seconds:
                return size
        return best

    def record(self, rows: int, nodes: int, seconds: float, tokens: int) -> None:
        batch, best = self._of(rows), self.best(rows)
        rate = batch.rates[best].value
        batch.seconds += seconds
        if nodes != best and rate:
            batch.lost += max(0.0, seconds - tokens / rate)
        batch.rates[nodes].add(seconds, tokens)

"""How much to draft: whatever has given most tokens per second for batches of about this size.

The text is the same for trees of any size, made in a pass of their own or in the verifying one, and without
drafts (`verify`), so time may decide. A way is tried only while the total cost of trying stays within a small
share of the time spent.
"""

from dataclasses import dataclass, field
from typing import NamedTuple


class Way(NamedTuple):
    """How a cycle drafts."""

    nodes: int | None
    """Of a tree; 0: a chain; None: no draft, the target goes on by itself."""
    drawn: bool = False
    """Tokens are drawn; else they are the likeliest."""
    one_pass: bool = False
    """The verifying pass also computes the next draft's block."""


ALONE = Way(None)
TREES = tuple(Way(nodes) for nodes in (4, 8, 16, 32, 64))
ONE_PASS = tuple(Way(nodes, one_pass=True) for nodes in (4, 8, 16))
"""Each node carries a block, so large trees and batches would cost too much to try."""
_FEW = 3  # they are tried for numbers of rows of so many bits
_SHARE = 0.04  # of the time may go into trying
_GUESS = 4.0  # times a step of the target that a cycle may take which was not tried yet
_KEEP = 0.95  # of what was measured, with every new measurement: texts and machines change


@dataclass
class _Rate:
    """Of the cycles of one way; recent ones count more."""

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
    rates: dict[Way, _Rate] = field(default_factory=dict)
    seconds: float = 0.0
    lost: float = 0.0
    again: Way | None = None
    """What the next cycle has to try once more."""


class Pace:
    def __init__(self, one_pass: bool = False) -> None:
        """`one_pass`: whether drafts may be made in the verifying pass."""
        self._one_pass = one_pass
        self._batches: dict[int, _Batch] = {}

    def _of(self, rows: int) -> _Batch:
        bits = rows.bit_length()
        ways = (ALONE, *TREES, *(ONE_PASS if self._one_pass and bits <= _FEW else ()))
        return self._batches.setdefault(bits, _Batch({way: _Rate() for way in ways}))

    def best(self, rows: int) -> Way:
        """What has been fastest."""
        rates = self._of(rows).rates
        return max(rates, key=lambda way: rates[way].value)

    def way(self, rows: int) -> Way:
        """For the next cycle of so many rows."""
        batch = self._of(rows)
        alone, best = batch.rates[ALONE], self.best(rows)
        if batch.again is not None:
            way, batch.again = batch.again, None
            return way
        if alone.tried < 3:
            return ALONE
        enough = 2 + max(rate.tried for rate in batch.rates.values()) // 64
        for way, rate in batch.rates.items():
            cost = rate.seconds / rate.cycles if rate.cycles else _GUESS * alone.seconds / alone.cycles
            if rate.tried < enough and batch.lost + cost <= _SHARE * batch.seconds:
                return way
        return best

    def record(self, rows: int, way: Way, seconds: float, tokens: int, cold: bool = False) -> None:
        """Of a cycle. `cold`: it had to make up for what the cycle before, which went another way, left out;
        the next one will show how fast this way is."""
        batch, best = self._of(rows), self.best(rows)
        rate = batch.rates[best].value
        batch.seconds += seconds
        if way != best and rate:
            batch.lost += max(0.0, seconds - tokens / rate)
        if cold:
            batch.again = way
        else:
            batch.rates[way].add(seconds, tokens)

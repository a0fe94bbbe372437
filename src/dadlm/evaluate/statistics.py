"""What can be counted in generated tokens without any other model: variety, entropy, repetition.

A row is the token ids of one text; rows may differ in length and may be empty. Knows nothing of words.
"""

import math
from collections import Counter
from collections.abc import Sequence

from dadlm.errors import ConfigError

Rows = Sequence[Sequence[int]]


def distinct(rows: Rows, n: int) -> float:
    """Distinct n-grams over all n-grams of the set; no n-gram in the set: 0, as nothing varied."""
    grams = [gram for row in rows for gram in _grams(row, n)]
    return len(set(grams)) / max(len(grams), 1)


def entropy(rows: Rows) -> float:
    """Mean over rows of the entropy, in nats, of the row's own token frequencies, as BD3LM reports it.

    An empty row counts as 0: a model must not look more varied by saying nothing.
    """
    return math.fsum(_entropy(row) for row in rows) / max(len(rows), 1)


def repetition(rows: Rows, n: int = 4) -> float:
    """Share of n-grams that occurred earlier in the same row, over all n-grams of the set."""
    total = sum(len(_grams(row, n)) for row in rows)
    fresh = sum(len(set(_grams(row, n))) for row in rows)  # each n-gram is new once, then repeated
    return (total - fresh) / max(total, 1)


def _entropy(row: Sequence[int]) -> float:
    return -math.fsum(count / len(row) * math.log(count / len(row)) for count in Counter(row).values())


def _grams(row: Sequence[int], n: int) -> list[tuple[int, ...]]:
    if n < 1:
        raise ConfigError(f"n-grams have at least one token, not {n}")
    return [tuple(row[first : first + n]) for first in range(len(row) - n + 1)]

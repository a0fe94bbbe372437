import math

import numpy as np
import pytest

from dadlm.errors import ConfigError
from dadlm.evaluate.quality import distinct, entropy, repetition


def test_distinct_counts_over_the_set() -> None:
    rows = [[1, 2, 1, 2], [1, 2]]  # 12 21 12, 12
    assert distinct(rows, 1) == 2 / 6
    assert distinct(rows, 2) == 2 / 4
    assert distinct(rows, 3) == 1.0  # 121 212
    assert distinct([[1, 2], [3, 4]], 2) == 1.0


def test_entropy_of_known_rows() -> None:
    assert entropy([[5, 5, 5]]) == 0.0
    assert entropy([list(range(16))]) == pytest.approx(math.log(16))
    assert entropy([[7, 7, 8, 9]]) == pytest.approx(1.5 * math.log(2))
    # The mean over rows, each with its own frequencies; not the entropy of all rows together.
    assert entropy([[1, 1], [2, 2], [1, 2]]) == pytest.approx(math.log(2) / 3)


def test_repetition_looks_at_what_came_before() -> None:
    rows = np.random.default_rng(0).integers(3, size=(5, 40)).tolist()
    seen = [row[i : i + 3] in [row[j : j + 3] for j in range(i)] for row in rows for i in range(38)]
    assert 0 < sum(seen) < len(seen)
    assert repetition(rows, n=3) == pytest.approx(sum(seen) / len(seen))


def test_rows_without_n_grams() -> None:
    assert distinct([[1, 2], []], 3) == repetition([[1, 2], []], 3) == entropy([]) == 0.0
    assert entropy([[], [1, 2]]) == pytest.approx(math.log(2) / 2)
    assert repetition([[], [1, 1]], 1) == 0.5


def test_n_of_an_n_gram() -> None:
    with pytest.raises(ConfigError, match="at least one token"):
        distinct([[1]], 0)

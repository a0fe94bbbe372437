"""Shares, epochs and determinism of mixtures."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dadlm.errors import ConfigError, DataError
from dadlm.tokens import Mixture, Rows, parse_mixture, training_rows


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a.txt", [(1.0, "a.txt")]),
        ("hf:org/name:big", [(1.0, "hf:org/name:big")]),
        ("a,b.txt", [(1.0, "a,b.txt")]),
        ("./2:a.txt", [(1.0, "./2:a.txt")]),
        ("0.7:a.jsonl.zst,0.3:b", [(0.7, "a.jsonl.zst"), (0.3, "b")]),
        ("2:a,b.txt,.5:hf:x/y:z,1.:c", [(2.0, "a,b.txt"), (0.5, "hf:x/y:z"), (1.0, "c")]),
    ],
)
def test_notation(text, parts):
    assert parse_mixture(text) == parts
    for bad in ("0:a,1:b", "1:,2:b", "0.5:"):
        with pytest.raises(ConfigError, match="WEIGHT:SOURCE"):
            parse_mixture(bad)


def mixture(sizes, weights) -> Mixture:
    """Rows whose one id tells source and number: 1000·source + row."""
    parts = [Rows.from_ids([1000 * n + row for row in range(size)], 1) for n, size in enumerate(sizes)]
    return Mixture(parts, weights)


def ids(rows, step, batch, seed=3) -> list[int]:
    return rows.batch(training_rows(rows, step, batch, seed)).flatten().tolist()


@settings(max_examples=20)
@given(
    sizes=st.lists(st.integers(1, 90), min_size=2, max_size=4),
    data=st.data(),
    seed=st.integers(0, 2**40),
)
def test_shares_are_exact_and_every_epoch_of_a_source_has_each_row_once(sizes, data, seed):
    weights = [data.draw(st.integers(1, 9)) for _ in sizes]
    rows = mixture(sizes, weights)
    seen = ids(rows, 0, 3000, seed)
    for first in range(0, 3000, 1000):
        shares = Counter(number // 1000 for number in seen[first : first + 1000])
        for part, weight in enumerate(weights):
            assert abs(shares[part] - 1000 * weight / sum(weights)) < 1
    for part, size in enumerate(sizes):
        times = Counter(number for number in seen if number // 1000 == part)
        assert len(times) == min(size, sum(times.values()))
        assert max(times.values()) - min(times.values()) <= 1  # no row a second time before all had a first


def test_order_follows_from_seed_and_sample_number():
    rows = mixture([50, 7], [0.7, 0.3])
    whole = ids(rows, 0, 2400)
    assert [x for step in range(100) for x in ids(rows, step, 24)] == whole
    assert ids(rows, 0, 2400, seed=4) != whole
    kinds = [number // 1000 for number in whole]
    assert kinds[:1000] != kinds[1000:2000]  # each round has an order of its own
    assert 20 < sum(kinds[:100]) < 40  # and mixes from the start
    assert 0 <= int(training_rows(rows, 10**12, 1, 3)[0]) < 57


def test_rows_by_number_and_one_round_for_validation():
    rows = mixture([3, 2], [3, 1])
    assert [int(row) for row in rows] == [0, 1, 2, 1000, 1001]
    assert Counter(int(row) // 1000 for row in rows.round()) == {0: 750, 1: 250}
    assert rows.fingerprint() != mixture([3, 1], [3, 1]).fingerprint()
    with pytest.raises(IndexError):
        rows[5]
    with pytest.raises(DataError, match="split its sources"):
        rows.cut(0, 2)
    with pytest.raises(ConfigError, match="too small"):
        mixture([3, 3], [1, 1e-5])
    assert ids(mixture([9, 9], [2, 2]), 0, 50) == ids(mixture([9, 9], [1, 1]), 0, 50)

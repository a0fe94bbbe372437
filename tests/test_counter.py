"""Counter-based numbers: the hash against plain integers, its statistics, and the shuffle without a list."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from dadlm import counter

PURPOSES = ("TIME", "MASK", "SHIFT", "ORDER", "PATH", "TOKEN", "REMASK", "REVEAL", "DROPOUT")


def naive_hash(*counters: int) -> int:
    """The same hash in Python's integers, which do not wrap by themselves."""
    golden, state = 0x9E3779B97F4A7C15, 0
    for value in counters:
        z = (state * 31 + value * golden + golden) % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        state = z ^ (z >> 31)
    return state


def chi_square(values: Tensor, bins: int) -> float:
    """Pearson's statistic of integers 0..bins-1 against the flat distribution; about bins ± sqrt(2·bins)."""
    count = torch.bincount(values.flatten(), minlength=bins).double()
    return float(((count - count.mean()) ** 2 / count.mean()).sum())


def limit(bins: int) -> float:
    """Five standard deviations above what a flat distribution gives."""
    return bins + 5 * (2 * bins) ** 0.5


@pytest.mark.parametrize("counters", [(0,), (1, 2, 3), (-1, 5), (2**62, 3, 0, 7), (-(2**63), 2**63 - 1)])
def test_hash_is_that_of_plain_integers(counters):
    assert int(counter.hash_counters(*counters)) % 2**64 == naive_hash(*counters)
    assert float(counter.uniform(*counters)) == (naive_hash(*counters) >> 40) / 2**24


def test_uniform_stays_below_one_for_the_largest_hash(monkeypatch):
    monkeypatch.setattr(counter, "hash_counters", lambda *_: torch.tensor([-1, 0]))
    assert counter.uniform().tolist() == [1 - 2.0**-24, 0.0]


def test_uniform_is_flat_in_every_counter():
    n = 1 << 16
    for place in range(3):
        counters: list[int | Tensor] = [7, 11, 13]
        counters[place] = torch.arange(n)
        u = counter.uniform(*counters)
        assert u.dtype == torch.float32 and u.min() >= 0 and u.max() < 1
        assert chi_square((u * 256).long(), 256) < limit(256)
        assert_close(u.double().mean().item(), 0.5, atol=5 * (12 * n) ** -0.5, rtol=0)


def test_neighbouring_counters_are_independent():
    u = counter.uniform(3, torch.arange(1 << 16), counter.MASK)
    pair = (u[:-1] * 16).long() * 16 + (u[1:] * 16).long()
    assert chi_square(pair, 256) < limit(256)


def test_purposes_are_distinct_and_their_streams_independent():
    purposes = [getattr(counter, name) for name in PURPOSES]
    assert len(set(purposes)) == len(purposes)
    streams = [counter.uniform(5, purpose, torch.arange(1 << 14)) for purpose in purposes]
    for a, b in itertools.combinations(streams, 2):
        assert chi_square((a * 8).long() * 8 + (b * 8).long(), 64) < limit(64)


def test_order_and_number_of_counters_matter_and_nothing_collides():
    a, b = torch.arange(300)[:, None], torch.arange(300)
    both = counter.hash_counters(a, b)
    assert (both == counter.hash_counters(b, a)).sum() == 300  # the diagonal, where the order says nothing
    everything = torch.cat([both.flatten(), counter.hash_counters(b), counter.hash_counters(0, 0, b)])
    assert len(everything.unique()) == 300 * 300 + 300 + 300


def test_shape_of_the_batch_changes_nothing():
    row, position = torch.arange(4)[:, None], torch.arange(5)
    together = counter.uniform(1, row, 9, position)
    assert together.shape == (4, 5)
    one_by_one = [[float(counter.uniform(1, i, 9, j)) for j in range(5)] for i in range(4)]
    assert together.tolist() == one_by_one
    assert torch.equal(counter.uniform(1, row[2:], 9, position[:3]), together[2:, :3])


@pytest.mark.parametrize("size", [*range(1, 35), 63, 64, 65, 127, 128, 129, 1000, 1023, 1024, 1025, 5000])
def test_permute_is_a_bijection(size):
    for seed, epoch in ((0, 0), (1, 5)):
        order = counter.permute(torch.arange(size), size, seed, epoch)
        assert order.sort().values.tolist() == list(range(size))


def test_permute_differs_by_seed_and_epoch():
    orders = [counter.permute(torch.arange(50), 50, s, e).tolist() for s in range(4) for e in range(4)]
    assert len({tuple(order) for order in orders}) == 16
    assert list(range(50)) not in orders


def test_permute_answers_where_asked_and_leaves_the_question_alone():
    index = torch.tensor([17, 3, 29, 0])
    asked = index.clone()
    whole = counter.permute(torch.arange(30), 30, 8, 2)
    assert torch.equal(counter.permute(index, 30, 8, 2), whole[index])
    assert torch.equal(index, asked)


def test_permute_takes_an_epoch_per_index():
    index, epoch = torch.arange(30), torch.arange(30) % 3
    mixed = counter.permute(index, 30, 8, epoch)
    for e in range(3):
        assert torch.equal(mixed[epoch == e], counter.permute(index, 30, 8, e)[epoch == e])


@pytest.mark.parametrize("size", [2, 4, 13, 40])
def test_permute_favours_no_place_over_many_epochs(size):
    epochs = 4000
    index = torch.arange(size).repeat(epochs)
    order = counter.permute(index, size, 3, torch.arange(epochs).repeat_interleave(size))
    assert chi_square(index * size + order, size**2) < limit(size**2)

"""Intervals that hold the truth as often as they say: the bootstrap of a mean, Wilson of a share."""

import pytest
import torch
from torch.testing import assert_close

from dadlm.evaluate.intervals import Interval, bootstrap, caution, wilson


@pytest.mark.parametrize("kind", ["normal", "skewed"])
def test_interval_covers_the_true_mean_about_95_times_in_100(kind):
    generator, trials, hits = torch.Generator().manual_seed(0), 300, 0
    for trial in range(trials):
        values = torch.randn(60, generator=generator)
        truth = 0.0
        if kind == "skewed":
            values, truth = values.square(), 1.0
        interval = bootstrap(values, draws=200, seed=trial)
        hits += interval.low <= truth <= interval.high
    assert 0.90 <= hits / trials <= 0.98


def test_rows_of_the_same_documents_cover_the_truth_only_when_documents_are_drawn():
    """50 documents of 1 to 12 rows that share an effect as large as what a row adds."""
    generator, trials, hits, naive = torch.Generator().manual_seed(3), 200, 0, 0
    for trial in range(trials):
        sizes = torch.randint(1, 13, (50,), generator=generator)
        document = torch.arange(50).repeat_interleave(sizes)
        values = torch.randn(50, generator=generator)[document] + torch.randn(
            len(document), generator=generator
        )
        grouped = bootstrap(values, document, draws=200, seed=trial)
        assert grouped.mean == float(values.double().mean())
        alone = bootstrap(values, draws=200, seed=trial)
        hits += grouped.low <= 0 <= grouped.high
        naive += alone.low <= 0 <= alone.high
    assert 0.89 <= hits / trials <= 0.98
    assert naive / trials < 0.75


def test_a_ratio_is_of_sums():
    """Two groups, so a draw is one of them twice, or both."""
    interval = bootstrap(torch.tensor([1.0, 2, 9]), torch.tensor([0, 0, 1]), per=torch.tensor([1.0, 1, 2]))
    assert (interval.mean, interval.low, interval.high) == (3.0, 1.5, 4.5)


# The paper's judge tables: DA-DLM's share and its interval, in percent, and the one number of decided pairs
# (below 4,000) that explains all three.
PAPER = [
    (1617, 2299, "70.33", "68.44", "72.17"),
    (601, 834, "72.06", "68.92", "75.00"),
    (1426, 1807, "78.92", "76.97", "80.73"),
    (1700, 1923, "88.40", "86.90", "89.76"),
]


@pytest.mark.parametrize(("wins", "total", "mean", "low", "high"), PAPER)
def test_wilson_gives_the_papers_intervals(wins, total, mean, low, high):
    interval = wilson(wins, total)
    assert [f"{100 * side:.2f}" for side in (interval.mean, interval.low, interval.high)] == [mean, low, high]


@pytest.mark.parametrize(("wins", "total"), [(0, 10), (10, 10), (3, 7), (1, 1), (450, 1000)])
def test_the_ends_of_wilson_are_the_shares_that_would_just_not_surprise(wins, total):
    """By definition: |share - p| is 1.96 standard deviations of a share whose truth is p."""
    interval = wilson(wins, total)
    for p in (interval.low, interval.high):
        assert_close(abs(interval.mean - p), 1.959964 * (p * (1 - p) / total) ** 0.5, atol=1e-6, rtol=0)
    assert 0 <= interval.low <= interval.mean <= interval.high <= 1
    other = wilson(total - wins, total)
    assert_close((other.low, other.high), (1 - interval.high, 1 - interval.low))


def test_little_is_told_to_be_little():
    assert wilson(0, 0) == Interval(0.5, 0.0, 1.0)
    assert caution(10) == [] and "Only 9 pairs" in caution(9, "pairs")[0]

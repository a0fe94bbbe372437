"""The bootstrap: a mean, and an interval that holds the truth as often as it says."""

import pytest
import torch
from torch.testing import assert_close

from dadlm.evaluate import Interval, bootstrap


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


def test_interval_is_as_wide_as_the_central_limit_theorem_says():
    values = torch.randn(400, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    interval = bootstrap(values)
    assert interval.mean == float(values.mean())
    assert interval.low < interval.mean < interval.high
    expected = 2 * 1.96 * float(values.std()) / 400**0.5
    assert_close(interval.high - interval.low, expected, rtol=0.1, atol=0)


def test_pairing_cancels_what_the_rows_share():
    generator = torch.Generator().manual_seed(2)
    hard = 5 * torch.randn(200, generator=generator)
    a, b = (hard + 0.1 * torch.randn(200, generator=generator) + shift for shift in (0.0, 0.1))
    paired, alone = bootstrap(b - a), bootstrap(b)
    assert paired.low > 0
    assert paired.high - paired.low < 0.05 * (alone.high - alone.low)


def test_the_difference_of_a_model_with_itself_is_exactly_zero():
    values = torch.randn(50)
    assert bootstrap(values - values.clone()) == Interval(0.0, 0.0, 0.0)


def test_same_seed_same_interval():
    values = torch.randn(30)
    assert bootstrap(values, draws=100, seed=4) == bootstrap(values, draws=100, seed=4)
    assert bootstrap(values, draws=100, seed=4) != bootstrap(values, draws=100, seed=5)


def test_interval_is_printed_with_its_mean():
    assert str(Interval(1.23456, 1.0, 2.0)) == "1.2346 [1.0000, 2.0000]"

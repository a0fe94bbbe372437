"""Every schedule: a probability that grows from 0 to 1, and the NELBO weight that belongs to it."""

import pytest
import torch
from torch.testing import assert_close

from dadlm.noise import SCHEDULES, sample_time

schedules = pytest.mark.parametrize("name", SCHEDULES)


@schedules
def test_probability_grows_from_zero_to_one(name):
    p = SCHEDULES[name].mask_probability(torch.linspace(0, 1, 1001, dtype=torch.float64))
    assert_close(p[[0, -1]], torch.tensor([0.0, 1.0]).double(), atol=1e-12, rtol=0)
    assert (p.diff() > 0).all()


@schedules
def test_weight_is_the_slope_over_the_probability(name):
    schedule = SCHEDULES[name]
    t = torch.linspace(1e-3, 0.999, 500, dtype=torch.float64)
    h = 1e-6
    slope = (schedule.mask_probability(t + h) - schedule.mask_probability(t - h)) / (2 * h)
    assert_close(schedule.weight(t), slope / schedule.mask_probability(t), rtol=1e-5, atol=0)


@schedules
def test_fp32_is_good_at_the_smallest_time(name):
    t = torch.tensor([1e-3, 2e-3, 0.5, 1.0])
    for function in (SCHEDULES[name].mask_probability, SCHEDULES[name].weight):
        assert_close(function(t).double(), function(t.double()), rtol=1e-6, atol=0)


@schedules
@pytest.mark.parametrize(("low", "high"), [(1e-3, 1.0), (0.3, 0.8)])
def test_weighted_masked_share_integrates_to_the_rise_of_the_probability(name, low, high):
    """E_t[weight · p] = ∫ p' dt / (high - low): 1 over the whole range, so that each token counts once."""
    schedule = SCHEDULES[name]
    t = sample_time(0, 0, torch.arange(2000), 2000, 5, low, high).double()
    mean = (schedule.weight(t) * schedule.mask_probability(t)).mean()
    ends = schedule.mask_probability(torch.tensor([low, high]).double())
    assert_close(mean, (ends[1] - ends[0]) / (high - low), rtol=1e-3, atol=0)

"""The search for the interval of times in which the loss varies least."""

import pytest
import torch
from torch import Tensor

from dadlm.noise import best_interval, candidate_intervals


def blocks(n: int = 4000, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Times, masked shares close to them, and a loss of constant variance."""
    generator = torch.Generator().manual_seed(seed)
    time = 1e-3 + 0.999 * torch.rand(n, generator=generator)
    fraction = (time + 0.05 * torch.randn(n, generator=generator)).clamp(0, 1)
    return time, fraction, torch.randn(n, generator=generator)


def test_candidates_are_all_intervals_of_the_published_search():
    expected = set()
    for width in range(50, 91, 10):  # in hundredths, where sums are exact
        for low in range(0, 101 - width, 5):
            expected.add((max(low / 100, 1e-3), (low + width) / 100))
    found = candidate_intervals()
    assert set(found) == expected
    assert len(found) == len(expected) == 11 + 9 + 7 + 5 + 3
    assert all(0.001 <= low < high <= 1 for low, high in found)


def test_best_is_the_interval_of_low_variance():
    for low, high, level in ((0.3, 0.8, 1000), (0.001, 0.5, 0), (0.45, 0.95, 0)):
        time, fraction, noise = blocks()
        quiet = (time >= low) & (time <= high) & (fraction >= low) & (fraction <= high)
        loss = torch.where(quiet, level + 0.1 * noise, 10 * noise)  # whatever the level of the loss
        assert best_interval(time, fraction, loss) == (low, high)


@pytest.mark.parametrize("astray", ["share", "time"])
def test_a_block_counts_only_with_time_and_masked_share_inside(astray):
    """Wild blocks with one of the two inside (0.3, 0.8) and the other beyond it do not count against it."""
    time, fraction, noise = blocks()
    fraction = time.clone()
    loss = torch.where((time >= 0.3) & (time <= 0.8), 0.1 * noise, noise)
    wild = ((time > 0.3) & (time < 0.45)).nonzero().flatten()[::5]
    (fraction if astray == "share" else time)[wild] = 0.99
    loss[wild] = 1000 * noise[wild]
    assert best_interval(time, fraction, loss) == (0.3, 0.8)


def test_intervals_seen_too_rarely_are_not_trusted():
    time = torch.cat([torch.full((50,), 0.3), torch.full((5,), 0.95)])
    loss = torch.cat([torch.randn(50, generator=torch.Generator().manual_seed(0)), torch.zeros(5)])
    low, _ = best_interval(time, time, loss)
    assert low <= 0.3  # the five equal losses at 0.95 would have variance 0
    assert best_interval(time[:10], time[:10], loss[:10]) == (1e-3, 1.0)

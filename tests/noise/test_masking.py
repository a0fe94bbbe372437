"""Times and masks: stratified over the global batch, and the same however the batch is split."""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from dadlm import counter
from dadlm.errors import ConfigError
from dadlm.noise import SCHEDULES, Noise, NoiseConfig, draw_noise, sample_time

PLAIN, CLIPPED = NoiseConfig(), NoiseConfig(low=0.3, high=0.8)


def draw(config: NoiseConfig = PLAIN, rows: Tensor | None = None, **changes) -> Noise:
    how = {"seed": 3, "step": 5, "batch_rows": 8, "length": 64, "block_size": 16} | changes
    return draw_noise(config, rows=torch.arange(how["batch_rows"]) if rows is None else rows, **how)


def fractions(noise: Noise, block_size: int) -> Tensor:
    return noise.masked.view(*noise.time.shape, block_size).float().mean(-1)


@pytest.mark.parametrize(("batch_rows", "blocks"), [(1, 1), (2, 3), (8, 16), (5, 13), (1, 64), (512, 64)])
def test_every_stratum_of_the_global_batch_holds_exactly_one_time(batch_rows, blocks):
    strata = batch_rows * blocks
    for step in range(3):
        u = sample_time(3, step, torch.arange(batch_rows), batch_rows, blocks, 0.0, 1.0).double().flatten()
        shift = float(counter.uniform(3, step, counter.SHIFT))
        place = (u - shift) % 1.0 * strata
        # A time stands strictly inside its stratum but for the rounding to fp32.
        assert place.sub(0.5).sort().values.sub(torch.arange(strata)).abs().max() < 0.5 + strata * 2**-23
        cyclic = torch.cat([u.sort().values, u.min()[None] + 1])
        assert cyclic.diff().max() <= 2 / strata + 1e-6


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_blocks_of_one_are_masked_and_count_once_under_every_schedule(schedule: str):
    noise = draw(NoiseConfig(schedule=schedule), block_size=1)  # type: ignore[arg-type]
    assert noise.masked[:, 1:].all() and (noise.weight == 1).all()


def test_each_row_sees_low_and_high_times():
    time = sample_time(3, 0, torch.arange(32), 32, 16, 0.0, 1.0)
    spread = time.sort(1).values.diff(dim=1).max(1).values
    assert spread.max() < 0.3  # of 16 random times, some rows would leave larger holes
    assert_close(time.mean(1), torch.full((32,), 0.5), atol=0.1, rtol=0)


def test_time_of_every_row_and_block_is_uniform_over_steps():
    rows, steps = torch.arange(3), 1500
    times = torch.stack([sample_time(1, step, rows, 3, 4, 0.2, 0.9) for step in range(steps)])
    u = ((times - 0.2) / 0.7).flatten(1).sort(0).values
    expected = (torch.arange(steps) + 0.5)[:, None] / steps
    assert (u - expected).abs().max() < 2 * steps**-0.5  # Kolmogorov–Smirnov, beyond the 0.1% level


def test_times_stay_within_their_interval():
    time = sample_time(0, 0, torch.arange(4000), 4000, 4, 1e-3, 1.0)
    assert time.dtype == torch.float32 and time.min() >= 1e-3 and time.max() <= 1
    assert time.min() < 1.2e-3 and time.max() > 0.9998


@pytest.mark.parametrize("config", [PLAIN, CLIPPED, NoiseConfig(schedule="cosine")])
@pytest.mark.parametrize("masks", [1, 3])
def test_splitting_rows_into_micro_batches_gives_identical_noise(config, masks):
    whole = draw(config, masks_per_row=masks)
    for sizes in ([1] * 8, [3, 5], [7, 1]):
        parts = [draw(config, rows, masks_per_row=masks) for rows in torch.arange(8).split(sizes)]
        for name in ("masked", "time", "weight"):
            joined = torch.cat([getattr(part, name) for part in parts])
            assert torch.equal(joined, getattr(whole, name)), name


def test_seed_step_and_row_each_change_times_and_masks():
    variants = [draw(), draw(seed=4), draw(step=6), draw(rows=torch.arange(8).flip(0))]
    for first in range(len(variants)):
        for second in range(first):
            assert not torch.equal(variants[first].time, variants[second].time)
            assert not torch.equal(variants[first].masked, variants[second].masked)
    assert torch.equal(variants[3].masked, variants[0].masked.flip(0))


@pytest.mark.parametrize("block_size", [1, 4, 64])
def test_position_zero_is_never_masked_and_every_other_is_when_time_is_one(block_size):
    certain = NoiseConfig(low=1 - 1e-7, high=1.0)
    masked = draw(certain, block_size=block_size).masked
    assert not masked[:, 0].any()
    assert masked[:, 1:].all()


@pytest.mark.parametrize("name", SCHEDULES)
def test_positions_are_masked_independently_with_the_probability_of_the_schedule(name):
    noise = draw(NoiseConfig(schedule=name), batch_rows=1024, length=128)
    p = SCHEDULES[name].mask_probability(noise.time.double())
    masked = noise.masked.view(1024, 8, 16).double()
    error = masked - p[..., None]
    spread = (p * (1 - p))[..., None].expand_as(error)
    for part in (error[:, 1:, i] for i in range(16)):  # each place of a block on its own
        assert abs(float(part.sum())) < 4.5 * float(spread[:, 1:, 0].sum()) ** 0.5
    for near in (p < 0.2, (p > 0.4) & (p < 0.6), p > 0.8):
        chosen = near[:, 1:]
        assert abs(float(error[:, 1:][chosen].sum())) < 4.5 * float(spread[:, 1:][chosen].sum()) ** 0.5
    # Independence: the variance of a block's count is the sum of its positions' variances.
    ratio = error[:, 1:].sum(-1).square().sum() / spread[:, 1:].sum()
    assert_close(float(ratio), 1.0, atol=0.08, rtol=0)


def test_weight_is_that_of_the_time():
    for name, schedule in SCHEDULES.items():
        noise = draw(NoiseConfig(schedule=name))
        assert_close(noise.weight, schedule.weight(noise.time))


def test_a_share_of_the_blocks_is_masked_whole_and_the_others_are_as_ever():
    plain, more = (draw(NoiseConfig(full_share=share), batch_rows=64, length=256) for share in (0.0, 0.3))
    full = more.masked.view(64, -1, 16)[:, 1:].all(-1)
    chosen = (more.time == 1)[:, 1:]
    assert bool(full[chosen].all()) and bool((more.weight[:, 1:][chosen] == 1).all())
    assert 0.25 < float(chosen.float().mean()) < 0.35
    others = ~(more.time == 1)
    assert torch.equal(more.time[others], plain.time[others])
    clipped = draw(NoiseConfig(full_share=0.3, low=0.2, high=0.7), batch_rows=64, length=256)
    assert torch.equal(clipped.time == 1, more.time == 1)  # not drawn again for lying outside


@pytest.mark.parametrize("change", [{"low": 0.3}, {"high": 0.8}, {"clip_search": True}])
def test_clipping_is_for_the_schedule_whose_times_are_shares(change):
    NoiseConfig(**change)
    with pytest.raises(ConfigError, match="only loglinear"):
        NoiseConfig(schedule="cosine", **change)


@pytest.mark.parametrize(("low", "high"), [(0.3, 0.8), (0.05, 0.55), (0.5, 1.0), (0.45, 0.95)])
@pytest.mark.parametrize("block_size", [4, 16])
def test_clipped_interval_holds_times_and_masked_fractions(low, high, block_size):
    noise = draw(NoiseConfig(low=low, high=high), batch_rows=64, block_size=block_size)
    share = fractions(noise, block_size)
    assert low <= noise.time.min() and noise.time.max() <= high
    assert low <= share.min() and share.max() <= high
    unclipped = torch.rand(64, 64 // block_size, block_size, generator=torch.Generator().manual_seed(0))
    outside = (unclipped < noise.time[..., None]).float().mean(-1)
    assert ((outside < low) | (outside > high)).any()  # without redrawing some would fall outside


def test_redrawn_blocks_have_the_conditional_distribution():
    """P(count | time, inside) is the binomial cut to the interval and scaled up."""
    n, low, high = 4, 0.25, 0.75
    noise = draw(NoiseConfig(low=low, high=high), batch_rows=2048, length=20, block_size=n)
    count = noise.masked.view(2048, 5, n).sum(-1)[:, 1:].flatten()
    t = noise.time[:, 1:].flatten().double()
    pmf = torch.stack([4 * t * (1 - t) ** 3, 6 * t**2 * (1 - t) ** 2, 4 * t**3 * (1 - t)], -1)
    pmf = pmf / pmf.sum(-1, keepdim=True)
    for k in (1, 2, 3):
        expected, spread = pmf[:, k - 1].sum(), (pmf[:, k - 1] * (1 - pmf[:, k - 1])).sum() ** 0.5
        assert abs(float((count == k).sum() - expected)) < 4 * float(spread)


def test_the_smallest_time_is_no_bound_for_the_masked_share():
    """As in BD3LM: an end of the interval that is the whole range's own is not enforced. Redrawing until
    something is masked would hardly end at t = 0.001, where one draw in 250 does it."""
    noise = draw(NoiseConfig(low=1e-3, high=0.9), batch_rows=2048, length=20, block_size=4)
    t, share = noise.time[:, 1:].double(), fractions(noise, 4)[:, 1:]
    assert share.max() <= 0.9
    empty = (1 - t) ** 4 / (1 - t**4)  # given that not all four are masked
    spread = float((empty * (1 - empty)).sum()) ** 0.5
    assert abs(float((share == 0).sum() - empty.sum())) < 4 * spread


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"schedule": "linear"}, "unknown noise schedule 'linear'.*loglinear, cosine"),
        ({"low": 0.0}, "0 < low < high <= 1"),
        ({"low": -0.1}, "0 < low < high <= 1"),
        ({"high": 1.1}, "0 < low < high <= 1"),
        ({"low": 0.5, "high": 0.5}, "0 < low < high <= 1"),
        ({"low": 0.6, "high": 0.5}, "0 < low < high <= 1"),
        ({"low": float("nan")}, "0 < low < high <= 1"),
        ({"full_share": 1.5}, "full_share must be in \\[0, 1\\]"),
    ],
)
def test_bad_settings_are_refused(bad, says):
    with pytest.raises(ConfigError, match=says):
        NoiseConfig(**bad)


# Noise on a part of each row

B, L, N = 6, 48, 8
NARROW = NoiseConfig(low=0.3, high=0.7)
draw_six = partial(draw, batch_rows=B, length=L, block_size=N)


def spans() -> Tensor:
    """Row i: positions 5 + 3i up to 20 + 3i."""
    position, start = torch.arange(L), 5 + 3 * torch.arange(B)[:, None]
    return (position >= start) & (position < start + 15)


def test_the_same_masks_as_ever_where_they_are_allowed() -> None:
    everywhere, some = draw_six(), draw_six(maskable=spans())
    assert torch.equal(some.masked, everywhere.masked & spans())
    assert some.masked.any()


def test_blocks_that_hold_something_maskable_are_kept_with_their_times() -> None:
    everywhere, some = draw_six(), draw_six(maskable=spans())
    assert some.blocks is not None
    for row in range(B):
        first, last = (5 + 3 * row) // N, (19 + 3 * row) // N
        blocks = some.blocks[row].tolist()
        assert set(range(first, last + 1)) <= set(blocks) and blocks == sorted(set(blocks))
        assert torch.equal(some.time[row], everywhere.time[row, blocks])
        assert torch.equal(some.weight[row], everywhere.weight[row, blocks])
    assert some.blocks.shape[1] == 3  # what the row that has most needs: 15 positions in blocks of 8
    assert draw_six(maskable=spans(), most_blocks=4).blocks.shape == (B, 4)  # type: ignore[union-attr]


def test_all_maskable_is_no_restriction() -> None:
    everywhere, some = draw_six(), draw_six(maskable=torch.ones(B, L, dtype=torch.bool))
    assert some.blocks is None
    assert torch.equal(some.masked, everywhere.masked)


def test_clipping_counts_what_may_be_masked() -> None:
    """Half of each block may be masked; a share of 0.3 to 0.7 of four tokens is two of them."""
    maskable = (torch.arange(L) % 2 == 1).expand(B, L)
    masked = draw_six(NARROW, maskable=maskable).masked.view(B, L // N, N).sum(-1)
    assert (masked == 2).all()
    assert not draw_six(NARROW, maskable=torch.zeros(B, L, dtype=torch.bool)).masked.any()

"""Even numbers of masks: the mean of the loss over times, with less variance (docs/maths.md §17)."""

from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from dadlm.errors import ConfigError
from dadlm.noise import Noise, NoiseConfig, draw_noise
from dadlm.noise.masking import FLOOR, mask_evenly

PLAIN, EVEN = NoiseConfig(), NoiseConfig(even=True)


def draw(config: NoiseConfig, rows: Tensor | None = None, **changes: Any) -> Noise:
    how: dict[str, Any] = {"seed": 3, "step": 5, "batch_rows": 8, "length": 64, "block_size": 16} | changes
    return draw_noise(config, rows=torch.arange(how["batch_rows"]) if rows is None else rows, **how)


def every_even_draw(n: int) -> tuple[Tensor, Tensor]:
    """All masks [D, n] that `mask_evenly` makes of a block, and their weights [D]: every number of masks with
    every order of the positions, each as likely as any other."""
    lots = torch.tensor(list(permutations(range(n)))).double() / n
    u = (torch.arange(n) + 0.5) / n
    u, lots = u.repeat_interleave(len(lots))[:, None], lots.repeat(n, 1)[:, None]
    masked, _, weight = mask_evenly(u, lots, torch.ones_like(lots, dtype=torch.bool))
    return masked[:, 0], weight[:, 0].double()


def integral(power: int, loss: Tensor, masks: Tensor, floor: float) -> Tensor:
    """Of (loss / t) to a power over times from `floor` to 1 and the masks [S, n] drawn at each."""
    t = torch.logspace(-9, 0, 100_001, dtype=torch.float64)[:, None]  # dense where the weight is large
    m, n = masks.sum(-1), masks.shape[1]
    values = (loss**power * t ** (m - power) * (1 - t) ** (n - m)).sum(-1)
    inside = t[:, 0] >= floor
    return torch.trapezoid(values[inside], t[inside, 0])


@pytest.mark.parametrize("n", [1, 2, 5])
def test_even_numbers_by_enumeration(n):
    """For a loss that is any function of the mask: the mean is that over times, integrated mask by mask; the
    mean square is that of the formula, and less than over times."""
    masks = torch.cartesian_prod(*[torch.arange(2)] * n).view(-1, n)[1:]
    loss = 1 + torch.rand(len(masks), generator=torch.Generator().manual_seed(n)).double()
    masked, weight = every_even_draw(n)
    which = (masked[:, None] == masks.bool()).all(-1)
    assert (which.sum(-1) == 1).all()  # never without a mask
    even = weight * (which * loss).sum(-1)
    assert_close(even.mean(), integral(1, loss, masks, floor=0.0), atol=0, rtol=1e-6)
    squares = [loss[masks.sum(-1) == m].square().mean() * n / m**2 for m in range(1, n + 1)]
    assert_close(even.square().mean(), torch.stack(squares).sum(), atol=0, rtol=1e-6)
    assert even.square().mean() < integral(2, loss, masks, floor=FLOOR) / 1.5


def test_blocks_of_one_token_are_exact_and_position_zero_alone_is_known():
    noise = draw(EVEN, block_size=1)
    assert noise.masked[:, 1:].all() and not noise.masked[:, 0].any() and (noise.weight == 1).all()


def test_even_noise_masks_every_number_of_tokens_equally_often_and_every_position():
    steps = [draw(EVEN, step=step, length=16, block_size=4, batch_rows=2) for step in range(400)]
    masked = torch.stack([noise.masked.view(2, 4, 4) for noise in steps])
    counts = masked[:, :, 1:].sum(-1).flatten().bincount(minlength=5) / masked[:, :, 1:, 0].numel()
    assert_close(counts, torch.tensor([0, 0.25, 0.25, 0.25, 0.25]), atol=0.015, rtol=0)
    first = masked[:, :, 0].sum(-1).flatten().bincount(minlength=5) / masked[:, :, 0, 0].numel()
    assert_close(first, torch.tensor([0, 1, 1, 1, 0]) / 3, atol=0.03, rtol=0)  # position 0 is always known
    assert not masked[:, :, 0, 0].any()
    share = masked[:, :, 1:].flatten(0, 2).float().mean(0)
    assert_close(share, torch.full((4,), 0.625), atol=0.02, rtol=0)


def test_even_noise_weighs_every_block_alike_and_says_the_share_that_it_masks():
    noise = draw(EVEN, length=64, block_size=16)
    count = noise.masked.view(8, 4, 16).sum(-1)
    allowed = torch.tensor([15, 16, 16, 16])
    assert_close(noise.weight * count, allowed.float().expand(8, 4))
    assert_close(noise.time, count / allowed)
    twice = draw(EVEN, length=64, block_size=16, masks_per_row=2)
    assert_close(
        twice.weight * twice.masked.view(8, 8, 16).sum(-1), allowed.repeat_interleave(2).expand(8, 8) / 2
    )


def test_even_noise_has_the_mean_of_the_loss_over_times():
    """The loss of a token given which others are known: any function of the mask. Both draws agree on its
    weighted mean over many steps, that of even numbers with less variance."""

    def losses(config: NoiseConfig) -> Tensor:
        values = []
        for step in range(3000):
            noise = draw(config, step=step, length=8, block_size=4, batch_rows=1)
            masked = noise.masked.view(2, 4)[1].float()
            known = (1 - masked) * torch.tensor([1.0, 2.0, 4.0, 8.0])
            values.append(noise.weight[0, 1] * (masked * (20 - known.sum() + torch.arange(4))).sum())
        return torch.stack(values)

    even, plain = losses(EVEN), losses(PLAIN)
    assert abs(even.mean() - plain.mean()) < 3 * (even.var() / 3000 + plain.var() / 3000).sqrt()
    assert even.var() < plain.var() / 2


def test_even_noise_keeps_to_what_may_be_masked_and_to_the_global_batch():
    maskable = torch.rand(8, 64, generator=torch.Generator().manual_seed(0)) < 0.3
    whole = draw(EVEN, maskable=maskable)
    assert not (whole.masked & ~maskable).any()
    some = draw(EVEN, rows=torch.tensor([2, 5]))
    assert_close(some.masked, draw(EVEN).masked[[2, 5]])
    assert draw(NoiseConfig(even=True, full_share=1.0)).masked[:, 1:].all()


@pytest.mark.parametrize(
    "other", [{"low": 0.3}, {"high": 0.9}, {"clip_search": True}, {"schedule": "cosine"}]
)
def test_even_noise_has_no_times(other):
    with pytest.raises(ConfigError, match="even noise"):
        NoiseConfig(even=True, **other)

"""Noise on a part of each row: nothing else is masked, and nothing else is learned."""

import torch
from torch import Tensor

from dadlm.noise import NoiseConfig, draw_noise

B, L, N = 6, 48, 8
CLIPPED = NoiseConfig(low=0.3, high=0.7)


def draw(config: NoiseConfig | None = None, maskable: Tensor | None = None, **more):
    return draw_noise(
        config or NoiseConfig(),
        seed=3,
        step=5,
        rows=torch.arange(B),
        batch_rows=B,
        length=L,
        block_size=N,
        maskable=maskable,
        **more,
    )


def spans() -> Tensor:
    """Row i: positions 5 + 3i up to 20 + 3i."""
    position, start = torch.arange(L), 5 + 3 * torch.arange(B)[:, None]
    return (position >= start) & (position < start + 15)


def test_the_same_masks_as_ever_where_they_are_allowed() -> None:
    everywhere, some = draw(), draw(maskable=spans())
    assert torch.equal(some.masked, everywhere.masked & spans())
    assert some.masked.any()


def test_blocks_that_hold_something_maskable_are_kept_with_their_times() -> None:
    everywhere, some = draw(), draw(maskable=spans())
    assert some.blocks is not None
    for row in range(B):
        first, last = (5 + 3 * row) // N, (19 + 3 * row) // N
        blocks = some.blocks[row].tolist()
        assert set(range(first, last + 1)) <= set(blocks) and blocks == sorted(set(blocks))
        assert torch.equal(some.time[row], everywhere.time[row, blocks])
        assert torch.equal(some.weight[row], everywhere.weight[row, blocks])
    assert some.blocks.shape[1] == 3  # what the row that has most needs: 15 positions in blocks of 8
    assert draw(maskable=spans(), most_blocks=4).blocks.shape == (B, 4)  # type: ignore[union-attr]


def test_all_maskable_is_no_restriction() -> None:
    everywhere, some = draw(), draw(maskable=torch.ones(B, L, dtype=torch.bool))
    assert some.blocks is None
    assert torch.equal(some.masked, everywhere.masked)


def test_clipping_counts_what_may_be_masked() -> None:
    """Half of each block may be masked; a share of 0.3 to 0.7 of four tokens is two of them."""
    maskable = (torch.arange(L) % 2 == 1).expand(B, L)
    masked = draw(CLIPPED, maskable).masked.view(B, L // N, N).sum(-1)
    assert (masked == 2).all()
    assert not draw(CLIPPED, torch.zeros(B, L, dtype=torch.bool)).masked.any()

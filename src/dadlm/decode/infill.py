"""Infilling: short gaps between known tokens are filled at once, from the same forward pass."""

import torch
from torch import Tensor


def short_gaps(masked: Tensor, in_window: Tensor, longest: int | Tensor, ratio: float | Tensor) -> Tensor:
    """[B, N] bool: masked positions in gaps of at most `longest`, in rows of which `ratio` is known.

    A gap is a run of masked positions with a known token on both sides. The text before the block counts
    as known; behind the block there is nothing yet, so a run that touches its end is not a gap. `in_window`
    [B, N] tells the block from padding behind it. Settings of each row are [B, 1].
    """
    N = masked.shape[1]
    open_ = masked | ~in_window
    place = torch.arange(N, device=masked.device).expand_as(masked)
    left = torch.where(open_, -1, place).cummax(1).values  # nearest known position at or before; -1: the edge
    right = torch.where(open_, N, place).flip(1).cummin(1).values.flip(1)  # at or after; N: none
    gap = masked & (right < N) & (right - left - 1 <= longest)
    known = (~open_).sum(1, keepdim=True) / in_window.sum(1, keepdim=True)
    return gap & (known >= ratio)

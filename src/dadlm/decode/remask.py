"""Remasking: which of a step's predictions are kept. The others are masked again.

Every decision is a function of (row seed, block, step, position): a row never feels its company. No
function waits for the device.

B rows, N block size.
"""

import torch
from torch import Tensor

from dadlm import counter
from dadlm.model.kernels import HAS_TRITON

_STEPS_AT_ONCE = 64  # bounds the memory of reveal_steps for long windows


def first_hitting(masked: Tensor, infilled: Tensor, seed: Tensor, block: Tensor, step: Tensor) -> Tensor:
    """Keep one position, uniformly among the masked ones that are not infilled anyway."""
    open_ = masked & ~infilled
    u = block_uniform(seed, block, step, masked.shape[1], counter.REVEAL).masked_fill(~open_, -1.0)
    return infilled | (_highest(u) & open_)


def random(masked: Tensor, infilled: Tensor, reveal: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """Keep the masked positions whose `reveal` step has come.

    A step that would keep nothing changes nothing, and a model that does not see the time would answer
    the same again: such steps are skipped, row by row. Returns what is kept and the step it happened at.
    """
    due = reveal.masked_fill(~masked, torch.iinfo(reveal.dtype).max).amin(1)
    at = torch.where(infilled.any(1) | ~masked.any(1), step, torch.maximum(step, due))
    return infilled | (masked & (reveal <= at[:, None])), at


def reveal_steps(seed: Tensor, block: Tensor, steps: Tensor, positions: int, longest: int) -> Tensor:
    """[B, N]: the step at which the exact uniform grid reveals each position, drawn before the first one.

    Step s of T reveals a position with probability 1 / (T - s), so the last step reveals all that are left.
    `longest` is the largest of `steps` [B].
    """
    reveal = steps[:, None].expand(-1, positions) - 1
    position = torch.arange(positions, device=seed.device)
    counters = (seed[:, None, None], block[:, None, None])
    for first in range(0, longest, _STEPS_AT_ONCE):
        step = torch.arange(first, min(first + _STEPS_AT_ONCE, longest), device=seed.device)[:, None]
        u = counter.uniform(*counters, step, position, counter.REMASK)  # [B, steps, N]
        left = steps[:, None, None] - step
        hit = (u < 1.0 / left.clamp(min=1)) & (left > 0)
        reveal = torch.where(hit.any(1), torch.minimum(reveal, first + hit.int().argmax(1)), reveal)
    return reveal


def confident(
    masked: Tensor,
    infilled: Tensor,
    confidence: Tensor,
    threshold: float | Tensor,
    ending: Tensor | None = None,
) -> Tensor:
    """Keep what is at least as sure as the threshold (or each row's, [B, 1]), and the surest in any case.

    Where texts are padded, `ending` [B, N] are end-of-texts: the last places of a block are surest to be
    padding, which is nobody's text. So the surest is one of the others; if there is none, the first end.
    """
    confidence = confidence.masked_fill(~masked, -1.0)
    forced = confidence
    if ending is not None:
        late = torch.arange(1, masked.shape[1] + 1, device=masked.device) / -(masked.shape[1] + 1)
        forced = torch.where(masked & ending, late, confidence)
    return infilled | (masked & ((confidence >= threshold) | _highest(forced)))


def block_uniform(seed: Tensor, block: Tensor, step: Tensor, positions: int, purpose: int) -> Tensor:
    """[B, N]: random numbers of the positions of a block, at counters [B]."""
    if seed.is_cuda and HAS_TRITON:
        from dadlm.decode.kernels.counters import uniform

        return uniform(seed, block, step, positions, purpose)
    position = torch.arange(positions, device=seed.device)
    return counter.uniform(seed[:, None], block[:, None], step[:, None], position, purpose)


def _highest(x: Tensor) -> Tensor:
    """One-hot of the largest entry of each row; ties go to the lowest index."""
    best = x == x.amax(1, keepdim=True)
    return best & (best.cumsum(1) == 1)

"""Remasking: which of a step's predictions are kept. The others are masked again.

Every decision is a function of (row seed, block, step, position): a row never feels its company.
B rows, N block size.
"""

import torch
from torch import Tensor

from dadlm import counter


def first_hitting(masked: Tensor, infilled: Tensor, seed: Tensor, block: Tensor, step: Tensor) -> Tensor:
    """Keep one position, uniformly among the masked ones that are not infilled anyway."""
    open_ = masked & ~infilled
    u = _uniform(counter.REVEAL, masked, seed, block, step).masked_fill(~open_, -1.0)
    return infilled | (_highest(u) & open_)


def random(
    masked: Tensor, infilled: Tensor, seed: Tensor, block: Tensor, step: Tensor, steps: Tensor
) -> tuple[Tensor, Tensor]:
    """Keep each masked position with probability 1 / (steps - step): the exact uniform grid.

    A step that would keep nothing changes nothing, and a model that does not see the time would answer
    the same again: such steps are skipped, row by row. Returns what is kept and the step it happened at.
    """
    step = step.clone()
    while True:
        u = _uniform(counter.REMASK, masked, seed, block, step)
        kept = infilled | (masked & (u < 1.0 / (steps - step)[:, None]))
        idle = masked.any(1) & ~kept.any(1)
        if not idle.any():
            return kept, step
        step += idle


def confident(masked: Tensor, infilled: Tensor, confidence: Tensor, threshold: float) -> Tensor:
    """Keep what is at least as sure as the threshold, and the surest position in any case."""
    confidence = confidence.masked_fill(~masked, -1.0)
    return infilled | (masked & ((confidence >= threshold) | _highest(confidence)))


def _uniform(purpose: int, masked: Tensor, seed: Tensor, block: Tensor, step: Tensor) -> Tensor:
    position = torch.arange(masked.shape[1], device=masked.device)
    return counter.uniform(seed[:, None], block[:, None], step[:, None], position, purpose)


def _highest(x: Tensor) -> Tensor:
    """One-hot of the largest entry of each row; ties go to the lowest index."""
    best = x == x.amax(1, keepdim=True)
    return best & (best.cumsum(1) == 1)

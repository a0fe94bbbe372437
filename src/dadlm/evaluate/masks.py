"""Masks of the first-hitting bound, every number of masks equally often, and the control variate this allows.

R rows, B rows of a batch, L tokens of a row, G blocks, C strata.
"""

import torch
from torch import Tensor

from dadlm import counter
from dadlm.noise import Noise, sample_time

_STEP = -1  # the t-sampled form counts its draws from 0: the two forms share no random number


def draw_masks(seed: int, rows: Tensor, count: int, length: int, block: int) -> Tensor:
    """Masks [B, L] of the rows so numbered out of `count`: in each block m positions, m even over 1..n.

    The m are stratified over the blocks of all rows; which positions they are is a hash of (seed, row,
    position). Position 0 is never masked.
    """
    position = torch.arange(length, device=rows.device).view(-1, block)
    n = (position > 0).sum(-1)
    u = sample_time(seed, _STEP, rows, count, len(n), 0.0, 1.0)
    m = (1 + (u * n).long()).minimum(n)  # u may be rounded to 1; a block of position 0 alone has no m
    lot = counter.hash_counters(seed, _STEP, counter.MASK, rows[:, None, None], position)
    lot = lot.masked_fill(position == 0, torch.iinfo(torch.int64).max)
    return (lot.argsort(-1).argsort(-1) < m[..., None]).flatten(1)


def weigh(masked: Tensor, block: int) -> Noise:
    """The noise of masks [B, L]: a block with m of its n maskable positions masked weighs n/m."""
    m = masked.view(len(masked), -1, block).sum(-1)
    n = torch.full_like(m, block)
    n[:, 0] -= 1  # position 0
    return Noise(masked, m / n.clamp(min=1), n / m.clamp(min=1))


_MOST, _FILL = 16, 8  # kinds at most, and blocks of each kind at least, on average
KINDS = 2 * (_MOST + 1)
"""C: a row's first block and the others, each with no masks or one of the kinds."""


def strata(m: Tensor, block: int, rows: int) -> Tensor:
    """[B, G]: the stratum of each block by its number of masks m [B, G]; first blocks of rows have their own.

    One stratum for each m, or fewer of neighbouring m where blocks are long, or too few for a mean of each.
    """
    G = m.shape[1]
    n = torch.full((G,), block)
    n[0] -= 1
    total = torch.full((G,), rows * max(1, G - 1))
    total[0] = rows
    kinds = n.clamp(max=_MOST).minimum(total // _FILL).clamp(min=1)
    kind = -(-m * kinds // n.clamp(min=1))  # rounded up: m = n is kind `kinds`
    kind[:, 1:] += _MOST + 1
    return kind


def level(nats: Tensor, blocks: Tensor) -> Tensor:
    """Nats of rows [R] without the variance of their numbers of masks, from sums by stratum [R, C].

    The nats of a row depend on how many masks its blocks happen to have. Over all rows every number of masks
    comes equally often, so this does not move the mean and must not widen its interval: each block counts by
    its distance from its stratum's mean.
    """
    usual = nats.sum(0) / blocks.sum(0).clamp(min=1)
    row = nats.sum(1)
    return row - blocks @ usual + row.mean()

"""Blocks sorted by how many of their positions are masked, so that this chance does not count as doubt.

Knows neither models nor texts.

R rows, B rows of a batch, G blocks of a row, C kinds.
"""

import torch
from torch import Tensor

_MOST, _FILL = 16, 8  # kinds at most, and blocks of each kind at least, on average
KINDS = 2 * (_MOST + 1)
"""C: a row's first block and the others, each with no masks or one of the kinds."""


def strata(m: Tensor, block: int, rows: int) -> Tensor:
    """[B, G]: which kind a block is of by its m masks [B, G]; a row's first block has kinds of its own.

    One kind for each m, or fewer that join neighbours where blocks are long, or too few for a mean of each.
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
    """Rows' nats [R] without the luck of their masks, from sums over the blocks of each stratum [R, C].

    What a row costs depends on how many masks its blocks happen to have. Over all rows every number of masks
    comes equally often, so this chance does not move the mean, and must not widen its interval either: each
    block counts by its distance from its stratum's mean.
    """
    usual = nats.sum(0) / blocks.sum(0).clamp(min=1)
    row = nats.sum(1)
    return row - blocks @ usual + row.mean()

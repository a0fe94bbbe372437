"""Choice of near-independent positions: a sampler that tests which tokens of a step do not affect each other.

PUNT (Azangulov et al., "Parallel Sampling from Masked Diffusion Models via Conditional Independence Testing",
2025, arXiv 2510.21961): draw a candidate everywhere, rank the positions by confidence (here the negative
entropy), then halve. The surer half is written in for a try; where that moves the distribution of a position
of the other half by more than ε (KL divergence), the position is dropped. So on within the halves. All halves
of one depth are tested in a single pass, against all their surer halves together: the bits of a position's
rank say on which side it is. What is left is kept: ⌈log2 |M|⌉ test passes for each pass that draws.

B rows, N block size, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from dadlm import counter
from dadlm.decode.sample import entropy_of
from research.blocks import Rival, Work

Believe = Callable[[Tensor, Tensor], Tensor]
"""What the model says [n, N, V] of rows [n] in which only what is masked [n, N] is not known, the rest being
as it is or as it was drawn."""


def ranks(masked: Tensor, confidence: Tensor) -> Tensor:
    """[B, N]: the place of each masked position among those of its row, the surest first; ties go left."""
    order = confidence.masked_fill(~masked, -torch.inf).sort(dim=1, descending=True, stable=True).indices
    place = torch.arange(masked.shape[1]).expand_as(order)
    return torch.zeros_like(order).scatter(1, order, place)


def divergence(logp: Tensor, other: Tensor) -> Tensor:
    """KL divergence [...] of other from logp [..., V]; what is impossible in logp adds nothing."""
    possible = logp > -torch.inf
    return torch.where(possible, logp.exp() * (logp - other), 0.0).sum(-1)


def independent(logp: Tensor, masked: Tensor, believe: Believe, epsilon: float) -> Tensor:
    """The positions [B, N] to keep, of those masked, whose distributions are logp [B, N, V]."""
    rank, kept = ranks(masked, -entropy_of(logp)), masked
    depth = max(0, int(masked.sum(1).max()) - 1).bit_length()
    for bit in reversed(range(depth)):
        anchors = kept & ((rank >> bit) % 2 == 0)
        tested = kept & ~anchors
        rows = (tested.any(1) & anchors.any(1)).nonzero().squeeze(1)
        if len(rows):
            moved = divergence(logp[rows], believe(rows, (masked & ~anchors)[rows])) > epsilon
            kept = kept.index_put((rows,), kept[rows] & ~(tested[rows] & moved))
    return kept


class Punt(Rival):
    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon

    def __call__(self, work: Work) -> tuple[Tensor, Tensor, Tensor]:
        logp = work.logp("draw")
        drawn = work.draw(logp, work.uniform(counter.TOKEN))
        tokens = torch.where(work.masked, drawn, work.ids)

        def believe(rows: Tensor, masked: Tensor) -> Tensor:
            return work.logp("test", rows, ids=tokens[rows], masked=masked)

        return tokens, independent(logp, work.masked, believe, self.epsilon), work.step

"""The single best path: max-product over the chain of groups, then backtracking.

Ties: the lowest index among the best nodes of the last group, then, going back, the lowest index among the
best predecessors. So among the optimal paths it is the one whose reversed indices come first in
lexicographic order.

Shapes: B any leading batch dimensions (also none), N groups, K candidates.
"""

import torch
from torch import Tensor

from dadlm.dag import kernels
from dadlm.dag._recursion import INF, check_shapes, upcast
from dadlm.dag.sampling import sample_path


@torch.no_grad()
def best_path(emission_logp: Tensor, transition_logp: Tensor) -> tuple[Tensor, Tensor]:
    """The best path, int64 [B, N], and its log-probability [B] in fp32 at least; no gradient.

    A block without any possible path gives log-probability -inf and the path of zeros.
    """
    check_shapes(transition_logp, emission_logp)
    if kernels.usable(emission_logp, transition_logp):
        from dadlm.dag.kernels.paths import best

        path, logp = best(kernels.flat(emission_logp, 2), kernels.flat(transition_logp, 3))
        path, logp = path.view(emission_logp.shape[:-1]), logp.view(emission_logp.shape[:-2])
    else:
        emission, transition = upcast(emission_logp, transition_logp)
        score, predecessors = _max_product(emission, transition)
        logp, last = _lowest_argmax(score)
        path = _backtrack(last, predecessors)
    return path.masked_fill((logp == -INF).unsqueeze(-1), 0), logp


@torch.no_grad()
def lookahead_path(emission_logp: Tensor, transition_logp: Tensor) -> Tensor:
    """A path, int64 [B, N], a step at a time: the best transition and emission together, whatever follows.

    Unlike `best_path` it never pays for a step with what that step makes certain later on.
    """
    check_shapes(transition_logp, emission_logp)
    emission, transition = upcast(emission_logp, transition_logp)
    score = transition + emission.unsqueeze(-2)
    best = score == score.amax(-1, keepdim=True)
    certain = torch.where(best & (best.cumsum(-1) == 1), 0.0, -INF)  # then there is nothing left to draw
    return sample_path(certain, torch.zeros_like(certain[..., 0, 0]))


def _max_product(emission: Tensor, transition: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Best score of a prefix ending at each node of the last group [B, K], and N-1 predecessors [B, K]."""
    score = transition[..., 0, 0, :] + emission[..., 0, :]
    predecessors: list[Tensor] = []
    for i in range(1, emission.shape[-2]):
        best, predecessor = _lowest_argmax((score.unsqueeze(-1) + transition[..., i, :, :]).transpose(-1, -2))
        predecessors.append(predecessor)
        score = best + emission[..., i, :]
    return score, predecessors


def _backtrack(last: Tensor, predecessors: list[Tensor]) -> Tensor:
    path = [last]
    for predecessor in reversed(predecessors):
        path.append(predecessor.gather(-1, path[-1].unsqueeze(-1)).squeeze(-1))
    return torch.stack(path[::-1], dim=-1)


def _lowest_argmax(score: Tensor) -> tuple[Tensor, Tensor]:
    """Maximum over the last dimension and its first index: the number of leading entries below it.

    `torch.argmax` leaves ties open. Counting also stays in range when a score is NaN.
    """
    best = score.amax(-1)
    return best, (score < best.unsqueeze(-1)).long().cumprod(-1).sum(-1)

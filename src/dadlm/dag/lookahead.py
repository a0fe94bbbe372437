"""A path a step at a time: each group's best node after the one before it, whatever follows.

Where `best_path` is the mode of whole blocks, this one never pays for a step with what that step makes
certain later on. Ties: the lowest index.

Shapes: B any leading batch dimensions (also none), N groups, K candidates.
"""

import torch
from torch import Tensor

from dadlm.dag._recursion import INF, upcast
from dadlm.dag._shapes import check_shapes
from dadlm.dag.sampling import sample_path


@torch.no_grad()
def lookahead_path(emission_logp: Tensor, transition_logp: Tensor) -> Tensor:
    """The path, int64 [B, N]: at each step the best transition and emission [B, N, K] together."""
    check_shapes(transition_logp, emission_logp)
    emission, transition = upcast(emission_logp, transition_logp)
    score = transition + emission.unsqueeze(-2)
    best = score == score.amax(-1, keepdim=True)
    certain = torch.where(best & (best.cumsum(-1) == 1), 0.0, -INF)  # then there is nothing left to draw
    return sample_path(certain, torch.zeros_like(certain[..., 0, 0]))

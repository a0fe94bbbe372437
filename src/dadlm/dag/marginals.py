"""How likely each node is: before the tokens are seen (prior) and after (posterior).

Both are differentiable, and no gradient ever reaches an impossible node. It refuses to know models,
tokens and what the bound built from the priors means (docs/maths.md).

Shapes: B any leading batch dimensions (also none), N groups, K candidates.
"""

import torch
from torch import Tensor

from dadlm.dag import kernels
from dadlm.dag._recursion import alphas, mask_gradient, posteriors, upcast
from dadlm.dag._shapes import check_shapes


def node_marginals(transition_logp: Tensor) -> Tensor:
    """Log prior of each node [B, N, K] under the transitions [B, N, K, K] alone; fp32 at least."""
    check_shapes(transition_logp)
    (transition,) = upcast(transition_logp)
    silent = torch.zeros_like(transition[..., 0, :])
    if kernels.usable(transition) and not transition.requires_grad:
        from dadlm.dag.kernels.forward import alphas as alphas_fused

        prior, _ = alphas_fused(kernels.flat(silent, 2), kernels.flat(transition, 3))
        return prior.view(silent.shape)
    return mask_gradient(alphas(silent, transition))


def node_posteriors(emission_logp: Tensor, transition_logp: Tensor) -> Tensor:
    """Log posterior of each node [B, N, K] given the tokens that were scored; fp32 at least.

    All -inf for a block without any possible path.
    """
    check_shapes(transition_logp, emission_logp)
    emission, transition = upcast(emission_logp, transition_logp)
    nodes, _ = posteriors(alphas(emission, transition), transition)
    return mask_gradient(nodes)

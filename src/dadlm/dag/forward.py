"""The likelihood of a block, with its gradient in closed form, and how likely each node is.

"Gradients give posteriors": the derivative of the log-sum by a node's log-emission is the posterior of the
node, by a log-transition the posterior of the pair. No gradient ever reaches an impossible node.

Shapes: B any leading batch dimensions (also none), N groups, K candidates.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from dadlm.dag import kernels
from dadlm.dag._recursion import INF, alphas, check_shapes, logsumexp, mask_gradient, posteriors, upcast


def forward_logp(emission_logp: Tensor, transition_logp: Tensor) -> Tensor:
    """Log of the sum over all paths [B], in fp32 at least; emissions [B, N, K], transitions [B, N, K, K].
    A block without any possible path has value -inf and gradient 0."""
    check_shapes(transition_logp, emission_logp)
    return _Forward.apply(emission_logp, transition_logp)


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, emission_logp: Tensor, transition_logp: Tensor) -> Tensor:
        if kernels.usable(emission_logp, transition_logp):
            from dadlm.dag.kernels.forward import alphas as alphas_fused

            alpha, total = alphas_fused(kernels.flat(emission_logp, 2), kernels.flat(transition_logp, 3))
            alpha, total = alpha.view(emission_logp.shape), total.view(emission_logp.shape[:-2])
        else:
            alpha = alphas(*upcast(emission_logp, transition_logp))
            total = logsumexp(alpha[..., -1, :], dim=-1)
        ctx.save_for_backward(emission_logp, transition_logp, alpha)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        emission_logp, transition_logp, alpha = ctx.saved_tensors
        if kernels.usable(emission_logp, transition_logp) and not torch.is_grad_enabled():
            from dadlm.dag.kernels.forward import gradients

            grad = grads[0].reshape(-1).contiguous()  # that of a sum is one number, expanded
            flat = (kernels.flat(alpha, 2), kernels.flat(transition_logp, 3), grad)
            to_emission, to_transition = gradients(*flat)
            return (
                to_emission.view(emission_logp.shape).to(emission_logp.dtype),
                to_transition.view(transition_logp.shape).to(transition_logp.dtype),
            )
        emission, transition = upcast(emission_logp, transition_logp)
        if torch.is_grad_enabled():  # a second derivative is wanted, and the saved alphas have no graph
            alpha = alphas(emission, transition)
        nodes, pairs = posteriors(alpha, transition)
        impossible = (alpha[..., -1, :] == -INF).all(-1)
        grad = grads[0].masked_fill(impossible, 0.0)[..., None, None]
        to_emission = to_transition = None
        if ctx.needs_input_grad[0]:
            to_emission = (grad * nodes.exp()).to(emission_logp.dtype)
        if ctx.needs_input_grad[1]:
            start = pad(nodes[..., :1, None, :], (0, 0, 0, nodes.shape[-1] - 1), value=-INF)  # row 0 of [0]
            all_pairs = torch.cat([start, pairs], dim=-3).exp()
            to_transition = (grad.unsqueeze(-1) * all_pairs).to(transition_logp.dtype)
        return to_emission, to_transition


def prefix_logp(emission_logp: Tensor, transition_logp: Tensor) -> Tensor:
    """Log-probability [B, N] of the tokens up to and including each place, summed over paths; fp32 at least.
    Its differences are log q(x_i | x_<i), so the joint of a block can be read token by token."""
    check_shapes(transition_logp, emission_logp)
    if kernels.usable(emission_logp, transition_logp) and not torch.is_grad_enabled():
        from dadlm.dag.kernels.forward import alphas as alphas_fused

        alpha, _ = alphas_fused(kernels.flat(emission_logp, 2), kernels.flat(transition_logp, 3))
        return logsumexp(alpha.view(emission_logp.shape), dim=-1)
    return mask_gradient(logsumexp(alphas(*upcast(emission_logp, transition_logp)), dim=-1))


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
    """Log posterior of each node [B, N, K] given the tokens that were scored; fp32 at least. All -inf for a
    block without any possible path."""
    check_shapes(transition_logp, emission_logp)
    emission, transition = upcast(emission_logp, transition_logp)
    nodes, _ = posteriors(alphas(emission, transition), transition)
    return mask_gradient(nodes)

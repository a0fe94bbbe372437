"""What all algorithms share: the shape check and the recursions over groups, in log space.

An impossible node is exactly -inf, and this makes neither values nor gradients NaN; a NaN in the input stays
visible in the output. docs/maths.md has the derivations.

Shapes: B any leading batch dimensions (also none), N groups, K candidates.
"""

import torch
from torch import Tensor

INF = float("inf")


def check_shapes(
    transition_logp: Tensor, emission_logp: Tensor | None = None, uniform: Tensor | None = None
) -> None:
    """Raise `ValueError` unless transitions are [B, N, K, K], emissions [B, N, K] and uniforms [B, N]."""
    shape = tuple(transition_logp.shape)
    if len(shape) < 3 or shape[-1] != shape[-2] or min(shape[-3:]) < 1:
        raise ValueError(
            f"transition_logp has shape {shape}; expected [..., N, K, K] with N >= 1 groups and "
            "K >= 1 candidates"
        )
    given = {"emission_logp": (emission_logp, "N, K", shape[:-1]), "uniform": (uniform, "N", shape[:-2])}
    for name, (tensor, letters, expected) in given.items():
        if tensor is not None and tuple(tensor.shape) != expected:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}; expected [..., {letters}] = {expected} "
                f"beside transition_logp [..., N, K, K] = {shape}"
            )


def upcast(*tensors: Tensor) -> list[Tensor]:
    """All tensors in their common dtype, fp32 at least."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return [tensor.to(dtype) for tensor in tensors]


def mask_gradient(logp: Tensor) -> Tensor:
    """The same values, but no gradient reaches an impossible entry, whatever arrives there."""
    return logp.masked_fill(logp == -INF, -INF)


def logsumexp(logp: Tensor, dim: int) -> Tensor:
    """Log of the sum over `dim`; -inf with gradient 0 where every term is -inf (torch's gradient is NaN)."""
    top, _, log_total = _sum_below_top(logp, dim)
    return (top + log_total).squeeze(dim)


def normalise(logp: Tensor, dim: int) -> Tensor:
    """Log-softmax over `dim`; -inf where every term is. The maximum is taken off first: subtracting
    `logsumexp` would round at the magnitude of `logp`, which grows with the block."""
    _, below, log_total = _sum_below_top(logp, dim)
    return below - log_total


def _sum_below_top(logp: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """The maximum over `dim`, `logp` relative to it, and the log-sum of that (0 if nothing is possible)."""
    top = logp.detach().amax(dim, keepdim=True)
    impossible = top == -INF
    below = logp - top.masked_fill(impossible, 0.0)
    total = below.exp().sum(dim, keepdim=True)
    return top, below, total.masked_fill(impossible, 1.0).log()


def alphas(emission_logp: Tensor, transition_logp: Tensor) -> Tensor:
    """[B, N, K]: log of the sum over all path prefixes that end at each node, its own token included."""
    alpha = [transition_logp[..., 0, 0, :] + emission_logp[..., 0, :]]
    for i in range(1, emission_logp.shape[-2]):
        arrive = logsumexp(alpha[-1].unsqueeze(-1) + transition_logp[..., i, :, :], dim=-2)
        alpha.append(arrive + emission_logp[..., i, :])
    return torch.stack(alpha, dim=-2)


def posteriors(alpha: Tensor, transition_logp: Tensor) -> tuple[Tensor, Tensor]:
    """Log posteriors of each node [B, N, K] and of each pair of neighbours [B, N-1, K, K]. Walks back; each
    step is normalised over K terms only, so that a group sums to one whatever the magnitude of the total."""
    came_from = normalise(alpha[..., :-1, :, None] + transition_logp[..., 1:, :, :], dim=-2)
    node = [normalise(alpha[..., -1, :], dim=-1)]
    for i in reversed(range(came_from.shape[-3])):
        node.append(logsumexp(node[-1].unsqueeze(-2) + came_from[..., i, :, :], dim=-1))
    nodes = torch.stack(node[::-1], dim=-2)
    return nodes, nodes[..., 1:, None, :] + came_from

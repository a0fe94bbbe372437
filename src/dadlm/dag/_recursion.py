"""The recursions over groups, in log space; `forward` and `marginals` are thin layers over them.

Every operation is safe at -inf: an impossible node has exactly -inf, and neither values nor gradients
become NaN because of it. A NaN that is in the input stays visible in the output. It refuses to know
what the scores mean and where they come from; docs/maths.md has the derivations.

Shapes: B any leading batch dimensions (also none), N groups, K candidates.
"""

import torch
from torch import Tensor

INF = float("inf")


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
    """Log-softmax over `dim`; -inf where every term is -inf.

    The maximum is taken off before the log-total: subtracting `logsumexp` instead would round at the
    magnitude of `logp`, which grows with the block.
    """
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
    """Log posteriors given all tokens: of each node [B, N, K], of each pair of neighbours [B, N-1, K, K].

    Walks from the last group to the first with P(a[i-1] = j | a[i] = k, tokens up to i-1). Compared with the
    textbook product of alpha, beta and 1/total, each step is normalised over K terms only, so the
    posteriors of a group sum to one whatever the magnitude of the total.
    """
    came_from = normalise(alpha[..., :-1, :, None] + transition_logp[..., 1:, :, :], dim=-2)
    node = [normalise(alpha[..., -1, :], dim=-1)]
    for i in reversed(range(came_from.shape[-3])):
        node.append(logsumexp(node[-1].unsqueeze(-2) + came_from[..., i, :, :], dim=-1))
    nodes = torch.stack(node[::-1], dim=-2)
    return nodes, nodes[..., 1:, None, :] + came_from

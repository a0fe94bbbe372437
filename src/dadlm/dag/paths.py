"""Paths: drawn by inverse CDF from one uniform number per group, the single best one, or a step at a time.

A drawn path depends on its own transitions and uniforms only, never on the batch around it, and never takes a
node of probability zero. Ties of the best path: the lowest index among the best nodes of the last group,
then, going back, the lowest index among the best predecessors.

Shapes: B any leading batch dimensions (also none), N groups, K candidates.
"""

from itertools import accumulate

import torch
from torch import Generator, Tensor

from dadlm.dag import kernels
from dadlm.dag._recursion import INF, check_shapes, logsumexp, normalise, upcast


@torch.no_grad()
def sample_path(
    transition_logp: Tensor, uniform: Tensor | None = None, generator: Generator | None = None
) -> Tensor:
    """A path, int64 [B, N], drawn by the transitions [B, N, K, K] from `uniform` [B, N] in [0, 1), or else
    from `generator`. A node without any outgoing probability leads to node 0."""
    check_shapes(transition_logp, uniform=uniform)
    if uniform is None:
        shape, device = transition_logp.shape[:-2], transition_logp.device
        uniform = torch.rand(shape, generator=generator, device=device, dtype=torch.float32)
    if kernels.usable(transition_logp, uniform):
        from dadlm.dag.kernels.paths import sample

        path = sample(kernels.flat(transition_logp, 3), kernels.flat(uniform.float(), 1))
        return path.view(uniform.shape)
    transition, threshold = upcast(transition_logp, uniform)
    return _walk(_successors(transition.exp(), threshold[..., None, None]))


@torch.no_grad()
def tilted(transition_logp: Tensor, emission_logp: Tensor) -> Tensor:
    """Transitions [B, N, K, K] of the paths weighted by their nodes' emissions [B, N, K]. A path drawn by
    them has a probability proportional to that of its transitions and emissions together."""
    check_shapes(transition_logp, emission_logp)
    if kernels.usable(transition_logp, emission_logp):
        from dadlm.dag.kernels.forward import tilt

        found = tilt(kernels.flat(emission_logp, 2), kernels.flat(transition_logp, 3))
        return found.view(transition_logp.shape)
    emission, transition = upcast(emission_logp, transition_logp)
    later = torch.zeros_like(emission[..., 0, :])
    links: list[Tensor] = []
    for i in reversed(range(transition.shape[-3])):
        link = transition[..., i, :, :] + (emission[..., i, :] + later)[..., None, :]
        later = logsumexp(link, dim=-1)
        links.append(normalise(link, dim=-1))
    return torch.stack(links[::-1], -3)


def _successors(probability: Tensor, uniform: Tensor) -> Tensor:
    """[B, N, K]: the node drawn after each possible predecessor: the number of cumulative probabilities <=
    uniform * total. Where rounding lifts the threshold to the total, the last possible node stands in."""
    # Summed one by one: a parallel scan may round by batch shape, and may step at a node of probability zero.
    cumulative = torch.stack(list(accumulate(probability.unbind(-1))), dim=-1)
    passed = (cumulative <= uniform * cumulative[..., -1:]).sum(-1)
    index = torch.arange(probability.shape[-1], device=probability.device)
    last_possible = (index * (probability > 0)).amax(-1)
    return torch.minimum(passed, last_possible)


def _walk(successors: Tensor) -> Tensor:
    node = torch.zeros_like(successors[..., 0, 0])  # the start node is row 0
    path: list[Tensor] = []
    for i in range(successors.shape[-2]):
        node = successors[..., i, :].gather(-1, node.unsqueeze(-1)).squeeze(-1)
        path.append(node)
    return torch.stack(path, dim=-1)


@torch.no_grad()
def best_path(emission_logp: Tensor, transition_logp: Tensor) -> tuple[Tensor, Tensor]:
    """The best path, int64 [B, N], and its log-probability [B] in fp32 at least; no gradient. A block without
    any possible path gives log-probability -inf and the path of zeros."""
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
    Unlike `best_path` it never pays for a step with what that step makes certain later on."""
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
    `torch.argmax` leaves ties open. Counting also stays in range when a score is NaN."""
    best = score.amax(-1)
    return best, (score < best.unsqueeze(-1)).long().cumprod(-1).sum(-1)

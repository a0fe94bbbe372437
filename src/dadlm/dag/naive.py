"""The slow truth: every function of `dag` by writing out all P = K^N paths. For tests and small examples."""

from itertools import product

import torch
from torch import Tensor


def all_paths(groups: int, candidates: int) -> Tensor:
    """[P, N]: all paths, the first group's index running fastest (the order in which ties are broken)."""
    return torch.tensor([path[::-1] for path in product(range(candidates), repeat=groups)])


def path_logp(emission_logp: Tensor, transition_logp: Tensor, paths: Tensor) -> Tensor:
    """[B, P]: log P(tokens, path) of each of the given paths [P, N]."""
    groups = torch.arange(paths.shape[-1])
    start = torch.zeros_like(paths[:, :1])
    predecessors = torch.cat([start, paths[:, :-1]], dim=1)
    return (emission_logp[..., groups, paths] + transition_logp[..., groups, predecessors, paths]).sum(-1)


def path_distribution(transition_logp: Tensor) -> tuple[Tensor, Tensor]:
    """All paths [P, N] and the probability of each under the transitions [B, P]."""
    groups, candidates = transition_logp.shape[-3:-1]
    paths = all_paths(groups, candidates)
    silent = torch.zeros_like(transition_logp[..., 0, :])
    return paths, path_logp(silent, transition_logp, paths).exp()


def count_paths(emission_logp: Tensor, transition_logp: Tensor) -> Tensor:
    """[B]: how many paths are possible."""
    return (_joint(emission_logp, transition_logp)[1] > -torch.inf).sum(-1)


def forward_logp(emission_logp: Tensor, transition_logp: Tensor) -> Tensor:
    return _joint(emission_logp, transition_logp)[1].logsumexp(-1)


def prefix_logp(emission_logp: Tensor, transition_logp: Tensor) -> Tensor:
    ends = range(1, emission_logp.shape[-2] + 1)
    return torch.stack(
        [forward_logp(emission_logp[..., :end, :], transition_logp[..., :end, :, :]) for end in ends], -1
    )


def best_path(emission_logp: Tensor, transition_logp: Tensor) -> tuple[Tensor, Tensor]:
    paths, logp = _joint(emission_logp, transition_logp)
    best = logp.max(-1).values
    first = [row.index(max(row)) for row in logp.reshape(-1, len(paths)).tolist()]
    return paths[torch.tensor(first).reshape(best.shape)], best


def node_marginals(transition_logp: Tensor) -> Tensor:
    paths, probability = path_distribution(transition_logp)
    return _sum_by_node(paths, probability, transition_logp.shape[-1]).log()


def node_posteriors(emission_logp: Tensor, transition_logp: Tensor) -> Tensor:
    paths, logp = _joint(emission_logp, transition_logp)
    return _sum_by_node(paths, logp.softmax(-1), emission_logp.shape[-1]).log()


def _joint(emission_logp: Tensor, transition_logp: Tensor) -> tuple[Tensor, Tensor]:
    """All paths [P, N] and log P(tokens, path) of each [B, P]."""
    paths = all_paths(*emission_logp.shape[-2:])
    return paths, path_logp(emission_logp, transition_logp, paths)


def _sum_by_node(paths: Tensor, weight: Tensor, candidates: int) -> Tensor:
    """[B, N, K]: the weight [B, P] of all paths through each node."""
    visits = torch.nn.functional.one_hot(paths, candidates).to(weight)
    return torch.einsum("...p,pnk->...nk", weight, visits)

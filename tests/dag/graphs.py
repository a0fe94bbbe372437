"""Random DAGs for the tests: anchors, partly active groups, and (on request) severed transitions. Shapes: B
any leading batch dimensions (also none), N groups, K candidates."""

from dataclasses import dataclass

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

INF = float("inf")
BATCHES = [(), (1,), (3,), (2, 2)]

# Derandomised: the same examples on every machine, so that a red test stays red.
few = settings(max_examples=15)
many = settings(max_examples=50)


@dataclass(frozen=True, kw_only=True)
class Graph:
    emission_logp: Tensor
    transition_logp: Tensor
    active: Tensor
    """[B, N, K]: anchors have one active node, other groups at least one."""

    @property
    def scores(self) -> tuple[Tensor, Tensor]:
        return self.emission_logp, self.transition_logp


@st.composite
def graphs(draw: st.DrawFn, severed: float = 0.0, max_groups: int = 5, max_candidates: int = 4) -> Graph:
    """Scores in fp64; `severed` is the share of transitions set to -inf, which may leave no path at all."""
    batch = draw(st.sampled_from(BATCHES))
    groups = draw(st.integers(1, max_groups))
    candidates = draw(st.integers(1, max_candidates))
    return random_graph(draw(st.integers(0, 2**31)), batch, groups, candidates, severed)


def random_graph(
    seed: int, batch: tuple[int, ...], groups: int, candidates: int, severed: float = 0.0
) -> Graph:
    generator = torch.Generator().manual_seed(seed)
    active = random_active(generator, (*batch, groups, candidates))
    emission, transition = random_raw(generator, (*batch, groups, candidates))
    emission, transition = masked(emission, transition, active)
    cuts = torch.rand(transition.shape, generator=generator) < severed
    return Graph(emission_logp=emission, transition_logp=transition.masked_fill(cuts, -INF), active=active)


def random_active(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """A third of the groups are anchors at a random index, a third full, a third random subsets."""
    chosen = torch.rand(shape, generator=generator)
    share = torch.randint(3, (*shape[:-1], 1), generator=generator) * 0.5
    return (chosen < share) | (chosen == chosen.amax(-1, keepdim=True))


def random_raw(generator: torch.Generator, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    emission = 3 * torch.randn(shape, generator=generator, dtype=torch.float64) - 4
    transition = 2 * torch.randn((*shape, shape[-1]), generator=generator, dtype=torch.float64)
    return emission, transition


def masked(raw_emission: Tensor, raw_transition: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of the contract from finite parameters; rows of inactive sources stay finite, as in a model."""
    emission = raw_emission.masked_fill(~active, -INF)
    transition = raw_transition.masked_fill(~active.unsqueeze(-2), -INF).log_softmax(-1)
    return emission, transition


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def gradients(function, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Gradients of the sum of `function` at fresh leaves."""
    at = leaves(*tensors)
    return torch.autograd.grad(function(*at).sum(), at)

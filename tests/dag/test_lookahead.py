"""lookahead_path against a plain walk, and where it leaves the best path."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from dadlm import dag

from .graphs import INF, Graph, graphs, many, random_active


def walk(emission: torch.Tensor, transition: torch.Tensor) -> list[int]:
    """From the start node to the best next one, one at a time, of a single block."""
    path = [0]
    for i in range(len(emission)):
        scores = [float(transition[i, path[-1], k] + emission[i, k]) for k in range(emission.shape[1])]
        path.append(scores.index(max(scores)))
    return path[1:]


def walks(emission: torch.Tensor, transition: torch.Tensor) -> torch.Tensor:
    *batch, N, K = emission.shape
    blocks = zip(emission.reshape(-1, N, K), transition.reshape(-1, N, K, K), strict=True)
    return torch.tensor([walk(*block) for block in blocks]).view(*batch, N)


@many
@given(graphs(severed=0.15))
def test_against_a_plain_walk(graph: Graph):
    assert torch.equal(dag.lookahead_path(*graph.scores), walks(*graph.scores))


@many
@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 4))
def test_ties_go_to_the_lowest_index(seed: int, groups: int, candidates: int):
    """Small integers as scores: ties are plenty and real."""
    generator = torch.Generator().manual_seed(seed)
    active = random_active(generator, (6, groups, candidates))
    draw = lambda shape: -torch.randint(2, shape, generator=generator).double()  # noqa: E731
    emission = draw((6, groups, candidates)).masked_fill(~active, -INF)
    transition = draw((6, groups, candidates, candidates)).masked_fill(~active.unsqueeze(-2), -INF)
    assert torch.equal(dag.lookahead_path(emission, transition), walks(emission, transition))


def test_a_rare_step_that_makes_all_others_certain_does_not_win():
    """Node 1 ends the text at once, with 0.05, and is certain from then on; node 0 halves at every token."""
    emission = torch.tensor([0.5, 1.0]).log().expand(8, 2)
    transition = torch.tensor([[0.95, 0.05], [0.0, 1.0]]).log().expand(8, 2, 2)
    assert dag.best_path(emission, transition)[0].tolist() == [1] * 8
    assert dag.lookahead_path(emission, transition).tolist() == [0] * 8

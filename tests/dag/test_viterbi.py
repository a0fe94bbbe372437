"""best_path against enumeration, lookahead_path against a plain walk, above all where paths tie."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from dadlm import dag
from dadlm.dag import naive

from .graphs import INF, Graph, graphs, leaves, many, random_active, random_graph


@many
@given(graphs(severed=0.15))
def test_against_enumeration(graph: Graph):
    path, logp = dag.best_path(*graph.scores)
    expected_path, expected_logp = naive.best_path(*graph.scores)
    assert torch.equal(path, expected_path)
    assert_close(logp, expected_logp)


@many
@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 4), st.sampled_from([0, 1, 2]))
def test_ties_against_enumeration(seed: int, groups: int, candidates: int, spread: int):
    """Small integers as scores: sums are exact, so that ties are plenty and real."""
    generator = torch.Generator().manual_seed(seed)
    active = random_active(generator, (6, groups, candidates))
    draw = lambda shape: -torch.randint(spread + 1, shape, generator=generator).double()  # noqa: E731
    emission = draw((6, groups, candidates)).masked_fill(~active, -INF)
    transition = draw((6, groups, candidates, candidates)).masked_fill(~active.unsqueeze(-2), -INF)
    path, logp = dag.best_path(emission, transition)
    expected_path, expected_logp = naive.best_path(emission, transition)
    assert torch.equal(path, expected_path)
    assert torch.equal(logp, expected_logp)
    assert torch.equal(dag.lookahead_path(emission, transition), walks(emission, transition))


def test_no_path_gives_zeros_and_minus_infinity():
    emission, transition = torch.zeros(3, 2), torch.zeros(3, 2, 2)
    emission[0, 0] = -3.0  # the prefix would prefer node 1
    transition[2] = -INF
    path, logp = dag.best_path(emission, transition)
    assert path.tolist() == [0, 0, 0] and logp == -INF


def test_dtypes_shapes_and_no_gradient():
    graph = random_graph(41, (2, 3), 4, 3)
    path, logp = dag.best_path(*leaves(*graph.scores))
    assert path.dtype == torch.int64 and path.shape == (2, 3, 4)
    assert logp.dtype == torch.float64 and logp.shape == (2, 3) and not logp.requires_grad
    alone, alone_logp = dag.best_path(graph.emission_logp[1, 2], graph.transition_logp[1, 2])
    assert torch.equal(alone, path[1, 2]) and torch.equal(alone_logp, logp[1, 2])
    rounded = [score.bfloat16() for score in graph.scores]
    path16, logp16 = dag.best_path(*rounded)
    path32, logp32 = dag.best_path(*(score.float() for score in rounded))
    assert logp16.dtype == torch.float32
    assert torch.equal(path16, path32) and torch.equal(logp16, logp32)


def test_nan_scores_do_not_leave_the_range():
    emission, transition = torch.full((3, 4), torch.nan), torch.zeros(3, 4, 4)
    path, logp = dag.best_path(emission, transition)
    assert logp.isnan() and ((path >= 0) & (path < 4)).all()


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
def test_lookahead_is_a_plain_walk(graph: Graph):
    assert torch.equal(dag.lookahead_path(*graph.scores), walks(*graph.scores))


def test_a_rare_step_that_makes_all_others_certain_does_not_win():
    """Node 1 ends the text at once, with 0.05, and is certain from then on; node 0 halves at every token."""
    emission = torch.tensor([0.5, 1.0]).log().expand(8, 2)
    transition = torch.tensor([[0.95, 0.05], [0.0, 1.0]]).log().expand(8, 2, 2)
    assert dag.best_path(emission, transition)[0].tolist() == [1] * 8
    assert dag.lookahead_path(emission, transition).tolist() == [0] * 8

"""sample_path: exact frequencies on a grid, a chi-square test, and uniforms chosen to break it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from dadlm import dag
from dadlm.dag import naive

from .graphs import INF, Graph, graphs, many, masked, random_graph

BELOW_ONE = 1 - 2.0**-24  # the largest number torch.rand gives in fp32


def frequencies(drawn: torch.Tensor, paths: torch.Tensor) -> torch.Tensor:
    """How often each of `paths` [P, N] occurs among the rows of `drawn` [S, N]."""
    return (drawn.unsqueeze(1) == paths).all(-1).sum(0)


def test_every_cell_of_a_grid_lands_on_its_path():
    """Probabilities in sixteenths, one uniform in the middle of each sixteenth: counts are exact."""
    sixteenths = torch.tensor(
        [
            [[3, 0, 13], [0, 0, 16], [1, 1, 14]],
            [[0, 16, 0], [5, 5, 6], [8, 1, 7]],
            [[16, 0, 0], [0, 3, 13], [4, 12, 0]],
        ]
    )
    middles = (torch.arange(16) + 0.5) / 16
    grid = torch.cartesian_prod(middles, middles, middles)
    transition = (sixteenths / 16).log()
    drawn = dag.sample_path(transition.expand(len(grid), 3, 3, 3), uniform=grid)
    paths, probability = naive.path_distribution(transition.double())
    assert torch.equal(frequencies(drawn, paths), (probability * 16**3).round().long())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_frequencies_pass_a_chi_square_test(seed: int):
    generator = torch.Generator().manual_seed(seed)
    active = torch.ones(4, 3, dtype=torch.bool)
    active[2, 1:] = False
    _, transition = masked(torch.zeros(4, 3), torch.randn(4, 3, 3, generator=generator), active)
    samples = 40_000
    drawn = dag.sample_path(transition.expand(samples, 4, 3, 3), generator=generator)
    paths, probability = naive.path_distribution(transition)
    possible = probability > 0
    seen, expected = frequencies(drawn, paths)[possible], samples * probability[possible]
    assert seen.sum() == samples and len(expected) == 27
    chi_square = ((seen - expected) ** 2 / expected).sum()
    freedom = torch.tensor(len(expected) - 1.0)
    assert torch.special.gammaincc(freedom / 2, chi_square / 2) > 0.001


@many
@given(graphs(), st.integers(0, 2**31))
def test_each_step_inverts_the_cdf_of_its_row(graph: Graph, seed: int):
    uniform = torch.rand(graph.active.shape[:-1], generator=torch.Generator().manual_seed(seed))
    path = dag.sample_path(graph.transition_logp, uniform=uniform)
    previous = torch.cat([torch.zeros_like(path[..., :1]), path[..., :-1]], dim=-1)
    rows = graph.transition_logp.exp().take_along_dim(previous[..., None, None], dim=-2).squeeze(-2)
    upper = rows.cumsum(-1).take_along_dim(path.unsqueeze(-1), dim=-1).squeeze(-1)
    lower = upper - rows.take_along_dim(path.unsqueeze(-1), dim=-1).squeeze(-1)
    assert (lower <= uniform + 1e-12).all() and (uniform < upper + 1e-12).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 2.0**-24, 0.5, BELOW_ONE, 1.0])
def test_adversarial_uniforms_stay_on_possible_nodes(dtype: torch.dtype, value: float):
    """1.0 is what a number just below it becomes when a caller rounds it to fewer bits."""
    transition = random_graph(43, (300,), 5, 6, severed=0.3).transition_logp
    dead = (transition == -INF).all(-1, keepdim=True)
    transition = torch.where(dead, torch.zeros_like(transition), transition).log_softmax(-1).to(dtype)
    path = dag.sample_path(transition, uniform=torch.full((300, 5), value, dtype=dtype))
    previous = torch.cat([torch.zeros_like(path[:, :1]), path[:, :-1]], dim=-1)
    taken = transition[torch.arange(300).unsqueeze(-1), torch.arange(5), previous, path]
    assert (taken > -INF).all()


@pytest.mark.parametrize("active", [3, 7, 9, 10, 11])
def test_a_row_whose_sum_rounds_below_one_does_not_overflow(active: int):
    """1/n summed n times is not 1 in fp32; the nodes behind it have probability zero."""
    transition = torch.full((1, 12, 12), -INF)
    transition[..., :active] = torch.tensor(1 / active).log()
    last = dag.sample_path(transition, uniform=torch.tensor([BELOW_ONE]))
    assert last.tolist() == [active - 1]
    short = dag.sample_path(transition - 0.1, uniform=torch.tensor([BELOW_ONE]))
    assert short.tolist() == [active - 1]


@pytest.mark.parametrize(
    ("row", "uniform", "drawn"),
    [
        ([0.25] * 4, [0.0, 0.25, 0.5, 0.75], [0, 1, 2, 3]),  # boundaries belong to the next node
        ([0.3, 0.3], [0.0, 0.45, 0.55, 0.9], [0, 0, 1, 1]),  # a row that does not sum to one is scaled
        ([0.0, 0.0, 0.3, 0.0, 0.7, 0.0], [0.0, BELOW_ONE], [2, 4]),  # impossible nodes are skipped
    ],
)
def test_rows_by_hand(row: list[float], uniform: list[float], drawn: list[int]):
    transition = torch.tensor(row).log().expand(len(uniform), 1, len(row), len(row))
    assert dag.sample_path(transition, uniform=torch.tensor(uniform)[:, None]).flatten().tolist() == drawn


def test_double_uniforms_keep_their_bits():
    transition = torch.tensor([1.0, 1e-12]).double().log().log_softmax(-1).expand(1, 2, 2)
    uniform = torch.tensor([1 - 1e-13], dtype=torch.float64)
    assert dag.sample_path(transition, uniform=uniform).tolist() == [1]
    assert dag.sample_path(transition, uniform=uniform - 1e-11).tolist() == [0]


def test_no_path_leads_to_node_zero():
    transition = torch.full((3, 2, 2), -INF)
    transition[0, 0, 1] = 0.0
    assert dag.sample_path(transition, uniform=torch.full((3,), 0.9)).tolist() == [1, 0, 0]


def test_batch_shape_changes_nothing():
    """Uniforms on the cumulative sums themselves, where one bit of difference would show."""
    transition = random_graph(47, (60, 7), 3, 4).transition_logp.float()
    steps = transition.exp().cumsum(-1)[..., 0, :]
    uniform = steps[..., 1].clamp(max=BELOW_ONE)
    together = dag.sample_path(transition, uniform=uniform)
    assert together.shape == (60, 7, 3) and together.dtype == torch.int64
    flat = dag.sample_path(transition.flatten(0, 1), uniform=uniform.flatten(0, 1))
    assert torch.equal(flat, together.flatten(0, 1))
    strided = transition.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(dag.sample_path(strided, uniform=uniform), together)
    for row in range(60):
        assert torch.equal(dag.sample_path(transition[row], uniform=uniform[row]), together[row])
        assert torch.equal(dag.sample_path(transition[row, 3], uniform=uniform[row, 3]), together[row, 3])


def test_generator_makes_it_repeatable():
    transition = random_graph(53, (200,), 4, 4).transition_logp
    draw = lambda seed: dag.sample_path(transition, generator=torch.Generator().manual_seed(seed))  # noqa: E731
    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    uniform = torch.rand((200, 4), generator=torch.Generator().manual_seed(1))
    assert torch.equal(draw(1), dag.sample_path(transition, uniform=uniform))


@many
@given(graphs(severed=0.3))
def test_tilted_paths_are_weighted_by_their_emissions(graph: Graph):
    """Their distribution against the share of each path among all, where one is possible."""
    emission, transition = graph.scores
    paths = naive.all_paths(*emission.shape[-2:])
    joint = naive.path_logp(emission, transition, paths)
    total = joint.logsumexp(-1, keepdim=True)
    alone = naive.path_logp(torch.zeros_like(emission), dag.tilted(transition, emission), paths)
    possible = (total > -INF).expand_as(joint)
    assert_close(alone.exp()[possible], (joint - total).exp()[possible])

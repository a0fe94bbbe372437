"""forward_logp, node_marginals and node_posteriors against enumeration, counting and finite differences."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from dadlm import dag
from dadlm.dag import naive

from .graphs import (
    INF,
    Graph,
    few,
    gradients,
    graphs,
    leaves,
    many,
    masked,
    random_active,
    random_graph,
    random_raw,
)


@many
@given(graphs(severed=0.15))
def test_value_is_the_sum_over_all_paths(graph: Graph):
    value = dag.forward_logp(*graph.scores)
    assert_close(value, naive.forward_logp(*graph.scores))
    assert torch.equal(value > -INF, naive.count_paths(*graph.scores) > 0)


@many
@given(graphs(severed=0.15))
def test_gradient_is_that_of_enumeration_and_zero_without_a_path(graph: Graph):
    got = gradients(dag.forward_logp, *graph.scores)
    expected = gradients(naive.forward_logp, *graph.scores)
    possible = naive.count_paths(*graph.scores) > 0
    for ours, truth in zip(got, expected, strict=True):
        assert_close(ours[possible], truth[possible])
        assert torch.equal(ours[~possible], torch.zeros_like(ours[~possible]))


@few
@given(st.integers(0, 2**31), st.integers(1, 3), st.integers(1, 3))
def test_gradcheck_through_masked_parameters(seed: int, groups: int, candidates: int):
    generator = torch.Generator().manual_seed(seed)
    active = random_active(generator, (2, groups, candidates))
    raw = leaves(*random_raw(generator, (2, groups, candidates)))
    for function in (
        lambda e, t: dag.forward_logp(*masked(e, t, active)),
        lambda e, t: dag.prefix_logp(*masked(e, t, active)),
        lambda e, t: dag.node_marginals(masked(e, t, active)[1])[active],
        lambda e, t: dag.node_posteriors(*masked(e, t, active))[active],
    ):
        assert torch.autograd.gradcheck(function, raw)


@many
@given(graphs())
def test_gradient_is_the_posterior(graph: Graph):
    to_emission, to_transition = gradients(dag.forward_logp, *graph.scores)
    assert_close(to_emission, dag.node_posteriors(*graph.scores).exp())
    assert_close(to_transition.sum(-2), to_emission)  # pairs summed over predecessors
    assert_close(to_transition[..., 1:, :, :].sum(-1), to_emission[..., :-1, :])  # and over successors
    assert not to_transition[..., 0, 1:, :].any()
    assert not to_transition[..., 1:, :, :][~graph.active[..., :-1, :]].any()


@many
@given(graphs(max_groups=6))
def test_zero_weights_count_the_paths(graph: Graph):
    emission = torch.zeros_like(graph.emission_logp).masked_fill(~graph.active, -INF)
    transition = torch.zeros_like(graph.transition_logp).masked_fill(~graph.active.unsqueeze(-2), -INF)
    count = graph.active.sum(-1).prod(-1)
    assert torch.equal(naive.count_paths(emission, transition), count)
    assert_close(dag.forward_logp(emission, transition), count.double().log())


def test_one_group_sums_over_its_nodes():
    emission, transition = torch.tensor([[-1.0, -2.0, -INF]]), torch.full((1, 3, 3), math.nan)
    transition[0, 0] = torch.tensor([0.25, 0.75, 0.0]).log()  # rows 1 and 2 of the start must not be read
    expected = math.log(0.25 * math.exp(-1) + 0.75 * math.exp(-2))
    assert_close(dag.forward_logp(emission, transition), torch.tensor(expected))


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (4, 1), (4, 3)])
@pytest.mark.parametrize("dead", ["emission", "transition", "both"])
def test_no_path_is_minus_infinity_with_zero_gradient(shape: tuple[int, int], dead: str):
    graph = random_graph(5, (2,), *shape)
    emission, transition = (score.clone() for score in graph.scores)
    if dead != "transition":
        emission[0, -1] = -INF
    if dead != "emission":
        transition[0, shape[0] // 2] = -INF
    emission, transition = leaves(emission, transition)
    value = dag.forward_logp(emission, transition)
    assert value[0] == -INF
    assert_close(value[1], naive.forward_logp(*graph.scores)[1])
    value.exp().log().sum().backward()  # what comes back to block 0 from here is NaN
    for grad in (emission.grad, transition.grad):
        assert grad is not None
        assert not grad[0].any()
        assert grad[1].isfinite().all() and grad[1].any()


def test_a_nan_in_the_input_stays_visible():
    emission, transition = random_graph(1, (2,), 4, 3).scores
    emission[0, 2, :] = math.nan
    value = dag.forward_logp(emission, transition)
    assert value.isnan().tolist() == [True, False]


def test_long_blocks_keep_precise_posteriors_in_fp32():
    emission, transition = random_graph(3, (4,), 200, 4).scores
    emission, transition = emission.float() - 20, transition.float()
    to_emission, _ = gradients(dag.forward_logp, emission, transition)
    exact, _ = gradients(dag.forward_logp, emission.double(), transition.double())
    assert_close(to_emission.sum(-1), torch.ones(4, 200), atol=2e-5, rtol=0)
    assert_close(to_emission.double(), exact, atol=2e-3, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_upcast_inside(dtype: torch.dtype):
    emission, transition = (score.to(dtype) for score in random_graph(7, (5,), 6, 4).scores)
    value = dag.forward_logp(emission, transition)
    assert value.dtype == torch.float32
    assert torch.equal(value, dag.forward_logp(emission.float(), transition.float()))
    for grad, exact in zip(
        gradients(dag.forward_logp, emission, transition),
        gradients(dag.forward_logp, emission.float(), transition.float()),
        strict=True,
    ):
        assert grad.dtype == dtype
        assert torch.equal(grad, exact.to(dtype))


def test_dtypes_promote():
    emission, transition = random_graph(7, (), 3, 2).scores
    assert dag.forward_logp(emission.float(), transition.float()).dtype == torch.float32
    assert dag.forward_logp(emission.float(), transition).dtype == torch.float64
    to_emission, to_transition = gradients(dag.forward_logp, emission.bfloat16(), transition)
    assert (to_emission.dtype, to_transition.dtype) == (torch.bfloat16, torch.float64)
    assert dag.forward_logp(emission.expand(0, 3, 3, 2), transition.expand(0, 3, 3, 2, 2)).shape == (0, 3)


def test_strided_and_expanded_inputs():
    graph = random_graph(13, (3,), 4, 3)
    emission, transition = (score.transpose(0, -1).contiguous().transpose(0, -1) for score in graph.scores)
    assert not emission.is_contiguous() and not transition.is_contiguous()
    assert_close(dag.forward_logp(emission, transition), dag.forward_logp(*graph.scores))
    shared = leaves(graph.emission_logp[0], graph.transition_logp[0])
    dag.forward_logp(shared[0].expand(5, 4, 3), shared[1].expand(5, 4, 3, 3)).sum().backward()
    for leaf, alone in zip(shared, gradients(dag.forward_logp, *shared), strict=True):
        assert_close(leaf.grad, 5 * alone)


@pytest.mark.parametrize("which", [0, 1])
def test_gradient_of_one_input_only(which: int):
    scores = list(random_graph(17, (2,), 4, 3).scores)
    expected = gradients(dag.forward_logp, *scores)[which]
    scores[which].requires_grad_()
    dag.forward_logp(*scores).sum().backward()
    assert_close(scores[which].grad, expected)
    assert scores[1 - which].grad is None


def test_second_derivative_is_right_too():
    generator = torch.Generator().manual_seed(61)
    active = random_active(generator, (2, 3, 2))
    raw = leaves(*random_raw(generator, (2, 3, 2)))
    assert not active.all() and (active.sum(-1) > 1).any()
    assert torch.autograd.gradgradcheck(lambda e, t: dag.forward_logp(*masked(e, t, active)), raw)


# Dynamo itself instantiates autograd.Function, which torch deprecates.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_under_compile():
    scores = random_graph(19, (4,), 4, 3).scores
    scores[0][0, 1] = -INF  # one block without a path
    compiled = torch.compile(dag.forward_logp, backend="aot_eager")
    assert_close(compiled(*scores), dag.forward_logp(*scores))
    for got, expected in zip(gradients(compiled, *scores), gradients(dag.forward_logp, *scores), strict=True):
        assert_close(got, expected)


@many
@given(graphs(severed=0.15))
def test_prefixes_against_enumeration(graph: Graph):
    got, expected = dag.prefix_logp(*graph.scores), naive.prefix_logp(*graph.scores)
    assert_close(got, expected)
    assert_close(got[..., -1], dag.forward_logp(*graph.scores))


@many
@given(graphs())
def test_gradient_of_prefixes_is_that_of_enumeration(graph: Graph):
    both = (gradients(prefix_logp, *graph.scores) for prefix_logp in (dag.prefix_logp, naive.prefix_logp))
    for ours, truth in zip(*both, strict=True):
        assert_close(ours, truth)


def test_a_prefix_without_a_path_has_no_gradient():
    emission, transition = leaves(*random_graph(5, (), 4, 2).scores)
    emission.data[2] = -INF
    value = dag.prefix_logp(emission, transition)
    assert (value > -INF).tolist() == [True, True, False, False]
    value.exp().log().sum().backward()
    assert emission.grad is not None and emission.grad.isfinite().all() and not emission.grad[2:].any()


@many
@given(graphs())
def test_marginals_against_enumeration(graph: Graph):
    assert_close(dag.node_marginals(graph.transition_logp), naive.node_marginals(graph.transition_logp))


@many
@given(graphs(severed=0.15))
def test_posteriors_against_enumeration(graph: Graph):
    got = dag.node_posteriors(*graph.scores)
    possible = naive.count_paths(*graph.scores) > 0
    assert_close(got[possible], naive.node_posteriors(*graph.scores)[possible])
    assert (got[~possible] == -INF).all()


@many
@given(graphs())
def test_both_sum_to_one_and_exclude_inactive_nodes(graph: Graph):
    for logp in (dag.node_marginals(graph.transition_logp), dag.node_posteriors(*graph.scores)):
        assert_close(logp.exp().sum(-1), torch.ones(logp.shape[:-1], dtype=logp.dtype))
        assert torch.equal(logp > -INF, graph.active)


@pytest.mark.parametrize("upstream", [1.0, INF, math.nan])
def test_impossible_nodes_get_no_gradient_whatever_arrives(upstream: float):
    graph = random_graph(29, (2,), 4, 3)
    emission, transition = leaves(*graph.scores)
    transition.data[0, 2] = -INF  # block 0 has no path
    arriving = torch.zeros(2, 4, 3, dtype=torch.float64).masked_fill(~graph.active, upstream)
    arriving[0, 2:] = upstream
    prior, posterior = dag.node_marginals(transition), dag.node_posteriors(emission, transition)
    assert (prior[0, 2:] == -INF).all() and (posterior[0] == -INF).all()
    for out in (prior, posterior):
        grads = torch.autograd.grad(out, (emission, transition), arriving, allow_unused=True)
        assert not any(grad.any() for grad in grads if grad is not None)


def test_improbable_is_not_impossible():
    """A node of probability e^-200 underflows in fp32, but its logarithm does not."""
    emission = torch.tensor([[0.0, -200.0], [0.0, -150.0]])
    transition = torch.full((2, 2, 2), 0.5).log()
    posterior = dag.node_posteriors(emission, transition)
    assert_close(posterior[:, 1], torch.tensor([-200.0, -150.0]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_dtypes_and_batch_shape(dtype: torch.dtype):
    emission, transition = (score.to(dtype) for score in random_graph(31, (2, 3), 4, 3).scores)
    expected = torch.promote_types(dtype, torch.float32)
    prior, posterior = dag.node_marginals(transition), dag.node_posteriors(emission, transition)
    assert prior.dtype == posterior.dtype == expected
    assert prior.shape == posterior.shape == (2, 3, 4, 3)
    assert_close(dag.node_marginals(transition[1, 2]), prior[1, 2])
    assert_close(dag.node_posteriors(emission[1, 2], transition[1, 2]), posterior[1, 2])

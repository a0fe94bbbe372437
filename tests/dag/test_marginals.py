"""node_marginals and node_posteriors against enumeration, and against each other."""

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


@few
@given(graphs())
def test_posterior_of_the_first_group_sees_the_last_token(graph: Graph):
    """Bayes by hand: fix the first node, and let the likelihood of the rest reweigh its prior."""
    first = graph.transition_logp[..., 0, 0, :]
    fixed = torch.full_like(graph.transition_logp[..., 0, :, :], -INF)
    joint: list[torch.Tensor] = []
    for k in range(first.shape[-1]):
        start = fixed.clone()
        start[..., 0, k] = first[..., k]
        through_k = torch.cat([start.unsqueeze(-3), graph.transition_logp[..., 1:, :, :]], dim=-3)
        joint.append(dag.forward_logp(graph.emission_logp, through_k))
    expected = torch.stack(joint, -1).log_softmax(-1)
    assert_close(dag.node_posteriors(*graph.scores)[..., 0, :], expected)


@few
@given(st.integers(0, 2**31), st.integers(1, 3), st.integers(1, 3))
def test_gradcheck_through_masked_parameters(seed: int, groups: int, candidates: int):
    generator = torch.Generator().manual_seed(seed)
    active = random_active(generator, (groups, candidates))
    emission, transition = leaves(*random_raw(generator, (groups, candidates)))

    def prior(raw: torch.Tensor) -> torch.Tensor:
        return dag.node_marginals(masked(emission, raw, active)[1])[active]

    def posterior(raw_emission: torch.Tensor, raw_transition: torch.Tensor) -> torch.Tensor:
        return dag.node_posteriors(*masked(raw_emission, raw_transition, active))[active]

    assert torch.autograd.gradcheck(prior, (transition,))
    assert torch.autograd.gradcheck(posterior, (emission, transition))


@few
@given(st.integers(0, 2**31))
def test_gradient_of_marginals_against_enumeration(seed: int):
    """The mean of a sum of node rewards along a path, by nodes and by paths.

    Through normalised rows: off them, the prior by enumeration also depends on the transitions that follow.
    """
    generator = torch.Generator().manual_seed(seed)
    active = random_active(generator, (3, 4, 3))
    emission, transition = random_raw(generator, (3, 4, 3))
    reward = torch.rand((3, 4, 3), generator=generator, dtype=torch.float64)

    def by_nodes(raw: torch.Tensor) -> torch.Tensor:
        return dag.node_marginals(masked(emission, raw, active)[1]).exp() * reward

    def by_paths(raw: torch.Tensor) -> torch.Tensor:
        paths, probability = naive.path_distribution(masked(emission, raw, active)[1])
        return probability * reward[..., torch.arange(4), paths].sum(-1)

    assert_close(gradients(by_nodes, transition), gradients(by_paths, transition))


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


def test_bound_through_marginals_has_a_clean_gradient():
    """The use in training: log of sum_k prior(k) p(x | k), with anchors and a block that is all anchors."""
    active = torch.ones(2, 4, 3, dtype=torch.bool)
    active[0, :, 1:] = False
    active[1, 2, :2] = False
    raw = leaves(torch.randn(2, 4, 3), torch.randn(2, 4, 3, 3))
    emission, transition = masked(raw[0], raw[1], active)
    (dag.node_marginals(transition) + emission).logsumexp(-1).sum().backward()
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in raw)
    assert raw[1].grad is not None and raw[1].grad[1].any() and not raw[1].grad[0].any()


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

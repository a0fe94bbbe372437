"""What the package exports, and what it says to tensors that do not fit."""

import pytest
import torch

from dadlm import dag

CALLS = {
    "forward_logp": lambda e, t: dag.forward_logp(e, t),
    "best_path": lambda e, t: dag.best_path(e, t),
    "lookahead_path": lambda e, t: dag.lookahead_path(e, t),
    "node_posteriors": lambda e, t: dag.node_posteriors(e, t),
    "prefix_logp": lambda e, t: dag.prefix_logp(e, t),
    "node_marginals": lambda _, t: dag.node_marginals(t),
    "sample_path": lambda _, t: dag.sample_path(t),
    "tilted": lambda e, t: dag.tilted(t, e),
}


def test_exports():
    assert set(dag.__all__) == {*CALLS, "check_shapes", "naive"}
    assert all(hasattr(dag, name) for name in dag.__all__)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("shape", [(4, 4), (3, 4, 5), (2, 0, 4, 4), (2, 3, 0, 0)])
def test_bad_transitions_are_refused(name: str, shape: tuple[int, ...]):
    with pytest.raises(ValueError) as error:
        CALLS[name](torch.zeros(shape[:-1]), torch.zeros(shape))
    assert f"transition_logp has shape {shape}" in str(error.value)
    assert "expected [..., N, K, K] with N >= 1 groups and K >= 1 candidates" in str(error.value)


@pytest.mark.parametrize("name", ["forward_logp", "best_path", "node_posteriors", "prefix_logp", "tilted"])
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 5), (2, 4, 4), (1, 3, 4), (2, 3, 4, 4)])
def test_bad_emissions_are_refused(name: str, shape: tuple[int, ...]):
    with pytest.raises(ValueError) as error:
        CALLS[name](torch.zeros(shape), torch.zeros(2, 3, 4, 4))
    assert f"emission_logp has shape {shape}; expected [..., N, K] = (2, 3, 4)" in str(error.value)
    assert "transition_logp [..., N, K, K] = (2, 3, 4, 4)" in str(error.value)


@pytest.mark.parametrize("shape", [(), (3,), (2, 4), (2, 3, 4)])
def test_bad_uniforms_are_refused(shape: tuple[int, ...]):
    with pytest.raises(ValueError) as error:
        dag.sample_path(torch.zeros(2, 3, 4, 4), uniform=torch.zeros(shape))
    assert f"uniform has shape {shape}; expected [..., N] = (2, 3)" in str(error.value)

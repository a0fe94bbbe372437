"""Marginals of single tokens under token edges: by enumeration of all texts and paths of a block."""

import itertools

import pytest
import torch
from tests.model.tiny import tiny_model
from torch import Tensor
from torch.testing import assert_close

from dadlm import dag
from dadlm.errors import ConfigError
from dadlm.model import Model
from dadlm.noise import Noise
from dadlm.objective import losses
from dadlm.objective.marginals import blocks_of, exact_or, token_marginals

N, V = 3, 4
MASKS = [torch.tensor(mask) for mask in itertools.product([False, True], repeat=N) if any(mask)]
KINDS = [("dadlm", "bilinear"), ("dadlm", "mlp"), ("bd3lm", "bilinear"), ("bd3lm", "mlp")]
SECOND = [("dadlm", "second"), ("bd3lm", "second")]
kinds = pytest.mark.parametrize(("family", "form"), KINDS)


def toy(family: str = "dadlm", form: str = "bilinear", **changes) -> Model:
    """Edges and candidates of as much weight as the rest."""
    shape = {"vocab_size": V + 1, "eot_id": V - 1, "block_size": N, "candidates": 2, "context": 2 * N}
    edges = {"edge": "bilinear", "edge_second_rank": 3} if form == "second" else {"edge": form}
    model = tiny_model(family, **(shape | edges | {"edge_rank": 4, "width": 16} | changes))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(3.0 if "edge" in name or "graph" in name else 1.0)
    return model


def rows_of(model: Model, rows: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, model.config.mask_id, (rows, 2 * N), generator=generator)


def in_second_block(mask: Tensor, rows: int) -> Tensor:
    return torch.cat([torch.zeros(N, dtype=torch.bool), mask]).expand(rows, -1)


@torch.no_grad()
def enumerated(model: Model, ids: Tensor, masked: Tensor) -> Tensor:
    """[B, N, V]: the marginals of each masked token of the second block, all texts written out."""
    block = masked[0, N:]
    texts = torch.tensor(list(itertools.product(range(V), repeat=N)))
    found = torch.zeros(len(ids), N, V, dtype=torch.float64)
    for row, text in itertools.product(range(len(ids)), texts[:, block].unique(dim=0)):
        one = ids[row : row + 1].clone()
        one[0, masked[0]] = text
        scores = model(one, Noise.of(masked[:1]))
        transition = scores.transition_logp
        if transition is None:
            transition = torch.zeros(*scores.emission_logp.shape, 1)
        p = dag.naive.forward_logp(scores.emission_logp.double(), transition.double())[0, 1].exp()
        found[row, torch.arange(N)[block], text] += p
    return found


@torch.no_grad()
def measured(model: Model, ids: Tensor, masked: Tensor, wanted: Tensor | None = None, **how) -> Tensor:
    """[B, N, V] of the second block, from `token_marginals`: the mean over chains."""
    noise = Noise.of(masked)
    scores = model(ids, noise)
    target, is_masked, _ = noise.split_blocks(ids, N)
    blocks = blocks_of(scores.denoised, scores.transition_logp, target, ids, model.config.mask_id)
    wanted = is_masked if wanted is None else is_masked & wanted
    found = torch.zeros(2 * len(ids), N, V, dtype=torch.float64)
    for said in token_marginals(model, blocks, wanted.flatten(0, 1), **how):
        found[said.blocks, said.place] = said.logp.double().exp().mean(1)
    return found.view(len(ids), 2, N, V)[:, 1]


@kinds
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("chunk", [1 << 24, 20])
def test_messages_are_the_sum_over_all_texts(family, form, mask, chunk, monkeypatch):
    monkeypatch.setattr("dadlm.objective.marginals._CHUNK", chunk)
    model = toy(family, form)
    ids, masked = rows_of(model), in_second_block(mask, 3)
    truth = enumerated(model, ids, masked)
    assert_close(truth[:, mask].sum(-1), torch.ones(3, int(mask.sum())).double(), atol=1e-5, rtol=0)
    assert_close(measured(model, ids, masked), truth, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("family", "form"), KINDS + SECOND)
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_chains_are_right_in_expectation(family, form, mask):
    """The mean over many chains; a chain never changes what stands right of a known token."""
    model = toy(family, form)
    ids, masked = rows_of(model, 2), in_second_block(mask, 2)
    truth, S = enumerated(model, ids, masked), 4096
    found = measured(model, ids, masked, chains=S)
    assert_close(found, truth, atol=4 * 0.5 / S**0.5, rtol=0)
    after_known = mask & ~torch.cat([torch.tensor([False]), mask[:-1]])
    assert_close(found[:, after_known], truth[:, after_known], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["bd3lm", "dadlm"])
def test_a_run_looks_no_further_back_than_its_start(family, monkeypatch):
    """Two runs in a block: the second does not know what the chains drew in the first."""
    monkeypatch.setattr(f"{__name__}.N", 5)
    model, mask = toy(family, "second"), torch.tensor([True, True, False, True, True])
    ids, masked = rows_of(model, 1), in_second_block(mask, 1)
    found = measured(model, ids, masked, chains=4096)
    assert_close(found, enumerated(model, ids, masked), atol=4 * 0.5 / 64, rtol=0)


def test_a_place_alone_needs_only_what_stands_left_of_it():
    model, mask = toy(), torch.ones(N, dtype=torch.bool)
    ids, masked = rows_of(model), in_second_block(mask, 3)
    for chains in (0, 8):
        everything = measured(model, ids, masked, chains=chains)
        for place in range(N):
            wanted = torch.arange(N) == place
            alone = measured(model, ids, masked, wanted, chains=chains)
            assert_close(alone[:, place], everything[:, place])
            assert not alone[:, ~wanted].any()


def test_chains_of_a_row_do_not_depend_on_the_batch_or_on_what_is_masked():
    model, masked = toy(), in_second_block(torch.ones(N, dtype=torch.bool), 3)
    ids = rows_of(model)
    together = measured(model, ids, masked, chains=8)
    for row in range(3):
        assert_close(measured(model, ids[row : row + 1], masked[:1], chains=8)[0], together[row])
    other = ids.clone()
    other[:, N:] = (other[:, N:] + 1) % V
    assert_close(measured(model, other, masked, chains=8), together)
    assert (measured(model, ids, masked, chains=8, seed=1) - together).abs().max() > 1e-3


# The bound


def edge_noise(ids: Tensor) -> Noise:
    masked = in_second_block(torch.ones(N, dtype=torch.bool), len(ids)).clone()
    masked[:, 1] = True
    return Noise(masked, torch.ones(len(ids), 2), torch.tensor([[2.0, 0.5]]).expand(len(ids), -1))


@kinds
def test_the_bound_is_through_true_marginals(family, form):
    model = toy(family, form)
    ids = rows_of(model)
    noise = edge_noise(ids)
    loss = losses(model, ids, noise)
    truth = enumerated(model, ids, in_second_block(torch.ones(N, dtype=torch.bool), 3))
    nll = -truth.gather(2, ids[:, N:, None]).log().sum((1, 2)) * 0.5
    assert_close(loss.bound[:, 1].double(), nll, atol=1e-5, rtol=1e-5)
    assert (loss.bound - loss.reconstruction)[:, 1].abs().max() > 1e-2
    assert_close(loss.bound[:, 0], loss.reconstruction[:, 0])  # one open token: nothing to sum out
    assert loss.by_chains is None and not loss.bound.requires_grad
    if family == "bd3lm":
        assert not loss.graph_gap.any()
    else:
        assert (loss.graph_gap - (loss.bound - loss.reconstruction)).abs().max() > 1e-3


def test_sampled_bounds_fall_towards_the_exact_one(monkeypatch):
    """In expectation each number of chains gives a bound, and more chains a tighter one."""
    model = toy()
    ids = rows_of(model, 40)
    noise = edge_noise(ids)
    exact = losses(model, ids, noise, chains=0).bound.mean()
    monkeypatch.setattr("dadlm.objective.marginals._DEARER", 0)
    drawn = [losses(model, ids, noise, chains=8, seed=seed).by_chains for seed in range(12)]
    slack = torch.stack([part.mean((1, 2)) for part in drawn]) - exact
    means, error = slack.mean(0), slack.std(0) / len(slack) ** 0.5
    assert means[0] > means[1] > means[2] > -3 * error[2]
    assert means[0] > 3 * means[2]  # as 1/S at least


def test_what_the_graph_adds_is_zero_while_candidates_are_alike():
    model = toy()
    ids = rows_of(model)
    noise = edge_noise(ids)
    assert losses(model, ids, noise).graph_gap.abs().max() > 1e-2
    with torch.no_grad():
        model.graph.candidate[:] = model.graph.candidate[0]
    loss = losses(model, ids, noise)
    assert_close(loss.graph_gap, torch.zeros(3, 2), atol=1e-5, rtol=0)
    assert (loss.bound - loss.reconstruction).abs().max() > 1e-2  # edges still tie neighbours together


def test_a_bound_that_was_not_asked_for_is_no_number():
    model = toy()
    ids = rows_of(model)
    assert losses(model, ids, edge_noise(ids), chains=None).bound.isnan().all()
    for chains in (-4, 6):
        with pytest.raises(ConfigError, match="multiple of 4"):
            losses(model, ids, edge_noise(ids), chains=chains)


@pytest.mark.parametrize("chains", [0, 8])
def test_other_precisions(chains, monkeypatch):
    monkeypatch.setattr("dadlm.objective.marginals._DEARER", 0)
    model = toy()
    ids = rows_of(model)
    single = losses(model, ids, edge_noise(ids), chains=chains).bound
    with torch.autocast("cpu", torch.bfloat16):
        half = losses(model, ids, edge_noise(ids), chains=chains).bound
    assert half.dtype == torch.float32
    assert_close(half, single, atol=0.3, rtol=0.1)
    if not chains:
        double = losses(model.double(), ids, edge_noise(ids), chains=chains).bound
        assert_close(double.float(), single, atol=1e-5, rtol=1e-5)


def test_messages_where_they_cost_little_more():
    pairs = [(8, 128), (8, 129), (64, 1024), (64, 8192)]
    assert [exact_or(chains, toy(vocab_size=V + 1, eot_id=0)) for chains, V in pairs] == [0, 8, 0, 64]


def test_edges_of_second_order_have_chains_alone():
    assert exact_or(8, toy(form="second")) == 8
    with pytest.raises(ConfigError, match="no exact marginals: take a multiple of 4"):
        exact_or(0, toy(form="second"))

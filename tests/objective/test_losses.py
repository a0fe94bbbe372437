"""Losses of all families against their definitions, by enumeration and in other orders and splits."""

import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tests.model.reference import reference
from tests.model.tiny import every_kind_of_mask, gradients, random_ids, random_noise, tiny_model
from torch import Tensor
from torch.testing import assert_close

from dadlm.dag import naive
from dadlm.model import Context, Model
from dadlm.nodes import Nodes, layout
from dadlm.noise import Noise
from dadlm.objective import losses, marginal_nll, path_nll

FAMILIES = ("ar", "mdlm", "bd3lm", "dadlm")


def noise_for(model: Model, batch: int = 4) -> Noise | None:
    return None if model.config.family == "ar" else random_noise(model, batch)


def block_scores(model: Model, ids: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
    scores = model(ids, Noise.of(masked))
    return scores.emission_logp, scores.transition_logp


def rows_of(noise: Noise | None, rows: Tensor) -> Noise | None:
    return None if noise is None else Noise(noise.masked[rows], noise.time[rows], noise.weight[rows])


def log_softmax(model: Model, hidden: Tensor, candidate: int = 0) -> Tensor:
    """Token log-probabilities from hidden states, the mask left out, without the head's own code."""
    if model.head.offset is not None:
        hidden = hidden + model.head.offset[candidate]
    logits = hidden @ model.head.linear.weight.to(hidden.dtype).T
    if model.head.linear.bias is not None:
        logits = logits + model.head.linear.bias
    return logits[..., : model.config.mask_id].log_softmax(-1)


def assert_same(ours: dict[str, Tensor], truth: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    for name, grad in truth.items():
        assert_close(
            ours[name], grad, atol=tolerance, rtol=tolerance, msg=lambda m, name=name: f"{name}: {m}"
        )


# AR, MDLM and BD3LM against their definitions


@pytest.mark.parametrize("architecture", ["lean", "bd3lm"])
def test_ar_is_the_log_softmax_of_the_next_token_given_each_prefix(architecture):
    model = tiny_model("ar", architecture=architecture)
    ids = random_ids(model.config)
    found = losses(model, ids, None).train
    assert found.shape == (4, 15)
    for i in range(1, 16):
        logp = log_softmax(model, model.read(ids[:, :i])[:, -1])  # the prefix alone
        assert_close(found[:, i - 1], -logp.gather(1, ids[:, i : i + 1]).squeeze(1), atol=1e-5, rtol=1e-5)


def test_mdlm_is_the_log_softmax_at_the_masked_positions():
    model = tiny_model("mdlm")
    ids, masked = random_ids(model.config), every_kind_of_mask(model.config)
    logp = log_softmax(model, model.read(torch.where(masked, model.config.mask_id, ids)))
    truth = -(logp.gather(2, ids[..., None]).squeeze(2) * masked).sum(1, keepdim=True)
    found = losses(model, ids, Noise.of(masked)).train
    assert found.shape == (4, 1)
    assert_close(found, truth, atol=1e-5, rtol=1e-5)
    assert_same(gradients(model, found.mean()), gradients(model, truth.mean()))


@pytest.mark.parametrize("architecture", ["lean", "bd3lm"])
def test_bd3lm_is_the_log_softmax_of_the_network_of_the_notes(architecture):
    model = tiny_model("bd3lm", architecture=architecture)
    ids, masked = random_ids(model.config), every_kind_of_mask(model.config)
    found = losses(model, ids, Noise.of(masked)).train
    for b in range(4):
        states, _ = reference(model, ids[b], masked[b])
        truth = torch.zeros(4, dtype=torch.float64)
        for (block, place, _), state in states.items():
            position = 4 * block + place
            if masked[b, position]:
                truth[block] -= log_softmax(model, state)[ids[b, position]]
        assert_close(found[b].double(), truth, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES[1:])
def test_each_block_is_weighted_by_its_own_time(family):
    model = tiny_model(family)
    ids, noise = random_ids(model.config), random_noise(model)
    plain = losses(model, ids, Noise(noise.masked, noise.time, torch.ones_like(noise.weight)))
    weighted = losses(model, ids, noise)
    for name in ("train", "reconstruction", "bound"):
        assert_close(getattr(weighted, name), getattr(plain, name) * noise.weight)


@pytest.mark.parametrize("family", FAMILIES[1:])
def test_without_masks_the_loss_is_zero_and_its_gradients_are_finite(family):
    model = tiny_model(family)
    noise = random_noise(model)
    noise.masked[:] = False
    loss = losses(model, random_ids(model.config), noise)
    assert_close(loss.train, torch.zeros_like(loss.train), atol=1e-6, rtol=0)
    assert all(grad.isfinite().all() for grad in gradients(model, loss.train.sum()).values())


# The DAG


@pytest.mark.parametrize("transition", ["single", "gated"])
@pytest.mark.parametrize("candidate_offset", [None, 0.3])
def test_dag_loss_is_the_sum_over_all_paths_written_out(transition, candidate_offset):
    """Each node's own log-softmax, each transition, all K^N paths: values and gradients."""
    model = tiny_model(transition=transition, candidate_offset=candidate_offset)
    ids, noise = random_ids(model.config), random_noise(model)
    context = Context()
    model.read(ids, context, only_context=True)
    blocks, masked, first = noise.split_blocks(ids, 4)
    denoised = model.denoise(blocks, masked, first, context, packed=False)
    groups = denoised.nodes.groups(denoised.nodes.to_slots(denoised.hidden))
    per_candidate = [
        log_softmax(model, groups[..., k, :], k).gather(-1, blocks[..., None]).squeeze(-1) for k in range(3)
    ]
    certain = torch.tensor([0.0, -torch.inf, -torch.inf])
    emission = torch.where(masked[..., None], torch.stack(per_candidate, -1), certain)
    paths = naive.all_paths(4, 3)
    logp = naive.path_logp(emission, model.transition_logp(denoised), paths)
    allowed = (masked[..., None, :] | (paths == 0)).all(-1)  # an anchor has candidate 0 only
    total = logp.masked_fill(~allowed, -1e30).logsumexp(-1)
    truth = -noise.weight * total
    found = losses(model, ids, noise)
    assert_close(found.train, truth, atol=1e-5, rtol=1e-5)
    assert_same(gradients(model, found.train.mean()), gradients(model, truth.mean()))


def test_bound_is_the_sum_of_token_marginals_written_out():
    model = tiny_model()
    emission, transition = block_scores(model, random_ids(model.config), every_kind_of_mask(model.config))
    prior = naive.node_marginals(transition.double())
    truth = -(prior.exp() * emission.double().exp()).sum(-1).log().sum(-1)
    assert_close(marginal_nll(emission, transition).double(), truth, atol=1e-5, rtol=1e-5)


def test_path_and_marginal_likelihood_agree_while_candidates_are_alike():
    model = tiny_model()
    assert model.graph is not None
    ids, noise = random_ids(model.config), random_noise(model)
    apart = losses(model, ids, noise)
    assert (apart.bound - apart.reconstruction).abs().max() > 1e-3
    with torch.no_grad():
        model.graph.candidate[:] = model.graph.candidate[0]
    alike = losses(model, ids, noise)
    assert_close(alike.bound, alike.reconstruction, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("length", [3, 4])
def test_path_and_marginal_likelihood_are_distributions_over_blocks(length):
    """Summed over all completions of a masked block, each is one: nothing is lost, nothing counted twice."""
    model = tiny_model(vocab_size=5, eot_id=3, context=2 * length, block_size=length)
    completions = torch.tensor(list(itertools.product(range(4), repeat=length)))
    prefix = torch.tensor([[1, 3, 0, 2][:length]]).expand(len(completions), -1)
    ids = torch.cat([prefix, completions], 1)
    masked = torch.zeros_like(ids, dtype=torch.bool)
    masked[:, length:] = True
    scores = block_scores(model, ids, masked)
    for nll in (path_nll, marginal_nll):
        assert_close(nll(*scores)[:, 1].double().neg().exp().sum().item(), 1.0, atol=1e-5, rtol=0)
    anchored = masked.clone()
    anchored[:, length + 1] = False  # given one token, the others still sum to one for each of its values
    total = path_nll(*block_scores(model, ids, anchored))[:, 1].double().neg().exp().sum()
    assert_close(total.item(), 4.0, atol=1e-4, rtol=0)


# Twins: packed and unpacked, with spare capacity, split and reordered


@pytest.mark.parametrize("transition", ["single", "gated"])
@pytest.mark.parametrize("expand_at", [0, 1])
def test_packed_unpacked_and_padded_losses_agree(transition, expand_at, monkeypatch):
    model = tiny_model(transition=transition, expand_at=expand_at, candidate_offset=0.3)
    ids, noise = random_ids(model.config), random_noise(model)
    results = []
    for way in ("packed", "unpacked", "padded"):
        with monkeypatch.context() as patch:
            if way == "unpacked":
                patch.setattr(model, "denoise", partial(Model.denoise, model, packed=False))
            if way == "padded":
                patch.setattr(layout, "capacity", lambda count, full, exact: count + 7)
            loss = losses(model, ids, noise)
            results.append((loss, gradients(model, loss.train.mean())))
    truth, truth_grads = results[1]
    for loss, grads in (results[0], results[2]):
        for name in ("train", "reconstruction", "bound"):
            assert_close(getattr(loss, name), getattr(truth, name), atol=1e-5, rtol=1e-5)
        assert_same(grads, truth_grads)


@pytest.mark.parametrize("family", FAMILIES)
def test_splitting_the_batch_changes_neither_losses_nor_gradients(family):
    model = tiny_model(family)
    ids, noise = random_ids(model.config), noise_for(model)
    whole = losses(model, ids, noise)
    truth = gradients(model, whole.train.mean())
    for sizes in ([1, 1, 1, 1], [3, 1]):
        parts = [losses(model, ids[rows], rows_of(noise, rows)) for rows in torch.arange(4).split(sizes)]
        for name in ("train", "reconstruction", "bound"):
            joined = torch.cat([getattr(part, name) for part in parts])
            assert_close(joined, getattr(whole, name), atol=1e-5, rtol=1e-5)
        summed = sum(part.train.sum() for part in parts) / whole.train.numel()
        assert isinstance(summed, Tensor)
        assert_same(gradients(model, summed), truth)


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_training_loss_carries_a_graph(family):
    model = tiny_model(family)
    loss = losses(model, random_ids(model.config), noise_for(model))
    assert loss.train.requires_grad
    assert not loss.reconstruction.requires_grad and not loss.bound.requires_grad


@pytest.mark.parametrize(
    ("family", "changes"),
    [("dadlm", {"expand_at": 0}), ("dadlm", {"expand_at": 1}), ("dadlm", {"candidates": 1}), ("bd3lm", {})],
)
def test_padding_the_collapsed_nodes_changes_no_loss_and_no_gradient(monkeypatch, family, changes):
    """On CUDA nodes before expansion are padded to a grid of tiles."""

    def padded(masked, first, start):
        count = masked.shape[1] * (int(start) + masked.shape[2])
        slot = torch.arange(count).expand(len(masked), -1)
        return Nodes(masked, first, 1, start, slot, F.pad(slot, (0, 5), value=-1))

    model = tiny_model(family, **changes)
    ids, noise, results = random_ids(model.config), random_noise(model), []
    for make in (layout._one_node_each, padded):
        monkeypatch.setattr(layout, "_one_node_each", make)
        loss = losses(model, ids, noise).train.mean()
        results.append((loss, *torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)))
    for plain, other in zip(*results, strict=True):
        if plain is None:  # the only candidate needs no transition
            assert other is None
            continue
        assert_close(plain, other, atol=1e-5, rtol=1e-4)


# Blocks of one token


@pytest.mark.parametrize(("family", "candidates"), [("bd3lm", 1), ("dadlm", 3)])
def test_blocks_of_one_token_at_time_one_give_an_exact_likelihood(family, candidates):
    """All positions but the first masked, weight 1: an autoregressive model, so all texts sum to one."""
    model = tiny_model(family, vocab_size=6, eot_id=4, context=4, block_size=1, candidates=candidates)
    ids = torch.tensor([(2, *rest) for rest in itertools.product(range(5), repeat=3)])
    masked = torch.ones_like(ids, dtype=torch.bool)
    masked[:, 0] = False
    ones = torch.ones(ids.shape)
    loss = losses(model, ids, Noise(masked, ones, ones))
    assert_close(loss.reconstruction[:, 0], torch.zeros(125), atol=1e-6, rtol=0)
    assert_close(loss.reconstruction.double().sum(1).neg().exp().sum().item(), 1.0, atol=1e-5, rtol=0)
    # The chain rule holds token by token: equal prefixes have equal losses.
    same = loss.reconstruction.view(5, 25, 4)[:, :, :2]
    assert_close(same, same[:, :1].expand_as(same), atol=1e-6, rtol=1e-6)

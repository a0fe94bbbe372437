"""Both transitions against a loop over nodes, their normalisation, and the reach of the track bias."""

import math

import pytest
import torch
from tests.model.tiny import every_kind_of_mask, gradients, random_ids, tiny_model
from torch import Tensor
from torch.testing import assert_close

from dadlm import dag
from dadlm.errors import ConfigError
from dadlm.model import Context, Denoised, Model
from dadlm.nodes import layout
from dadlm.noise import Noise

kinds = pytest.mark.parametrize("kind", ["single", "gated"])


@pytest.fixture(params=["exact", "padded"])
def spare(request, monkeypatch) -> None:
    if request.param != "exact":
        monkeypatch.setattr(layout, "capacity", lambda count, full, exact: count + 5)


def denoise(model: Model, masked: Tensor | None = None, packed: bool = True) -> Denoised:
    ids, context = random_ids(model.config), Context()
    masked = every_kind_of_mask(model.config) if masked is None else masked
    model.read(ids, context, only_context=True)
    return model.denoise(*Noise.of(masked).split_blocks(ids, model.config.block_size), context, packed=packed)


def used_sources(masked: Tensor, candidates: int) -> Tensor:
    """[B, G, N, K]: source nodes of each transition that exist; the start node stands in row 0."""
    alone = torch.arange(candidates) == 0
    sources = torch.cat([torch.zeros_like(masked[..., :1]), masked[..., :-1]], -1)
    return sources[..., None] | alone


def naive_transition(model: Model, start: Tensor, groups: Tensor, masked: Tensor) -> Tensor:
    """[N, K, K] of one block from hidden states start [D] and groups [N, K, D], node by node, in fp64."""
    assert model.graph is not None
    part, config = model.graph.transition, model.config
    N, K, heads = config.block_size, config.candidates, config.heads
    w = {name: p.detach().double() for name, p in part.named_parameters()}
    out = torch.full((N, K, K), -math.inf, dtype=torch.float64)
    for i in range(N):
        sources = [start] if i == 0 else list(groups[i - 1, : K if masked[i - 1] else 1])
        targets = list(groups[i, : K if masked[i] else 1])
        track = i > 0 and bool(masked[i - 1]) and bool(masked[i])
        for j, source in enumerate(sources):
            if config.transition == "single":
                scores = torch.stack([(w["query.weight"] @ source) @ (w["key.weight"] @ t) for t in targets])
                scores = scores / math.sqrt(config.width)
                if track and "bias" in w:
                    scores[j] += w["bias"]
                out[i, j, : len(targets)] = scores.log_softmax(0)
                continue
            at = lambda x, place: torch.cat([x, w["position.weight"][place]])  # noqa: E731
            q = (w["query.weight"] @ at(source, i) + w["query.bias"]).view(heads, -1)
            gate = (w["gate.weight"] @ at(source, i) + w["gate.bias"]).softmax(0)
            k = [(w["key.weight"] @ at(t, i + 1) + w["key.bias"]).view(heads, -1) for t in targets]
            total = torch.zeros(len(targets), dtype=torch.float64)
            for h in range(heads):
                scores = torch.stack([q[h] @ target[h] for target in k]) / math.sqrt(q.shape[1])
                if track and "bias" in w:
                    scores[j] += w["bias"][h]
                total += gate[h] * scores.softmax(0)
            out[i, j, : len(targets)] = total.log()
    return out


@kinds
@pytest.mark.parametrize("track_bias", [3.0, None])
@pytest.mark.parametrize("packed", [True, False])
def test_transitions_are_those_of_a_loop_over_nodes(kind, track_bias, packed, spare):
    model = tiny_model(transition=kind, track_bias=track_bias)
    denoised = denoise(model, packed=packed)
    nodes, slots = denoised.nodes, denoised.nodes.to_slots(denoised.hidden).detach().double()
    found = model.transition_logp(denoised).detach().double()
    groups, used = nodes.groups(slots), used_sources(nodes.masked, 3)
    for b in range(found.shape[0]):
        for g in range(found.shape[1]):
            truth = naive_transition(model, slots[b, g, 0], groups[b, g], nodes.masked[b, g])
            assert_close(found[b, g][used[b, g]], truth[used[b, g]], atol=1e-5, rtol=1e-5)


@kinds
def test_rows_are_normalised_over_active_targets_and_impossible_towards_others(kind, spare):
    model = tiny_model(transition=kind)
    denoised = denoise(model)
    logp = model.transition_logp(denoised)
    active = denoised.nodes.active[..., None, :].expand_as(logp)
    assert logp.dtype == torch.float32
    assert torch.equal(logp == -torch.inf, ~active)
    total = logp.exp().sum(-1)  # also of rows that leave nodes that do not exist: a picture may show them
    assert_close(total, torch.ones_like(total))
    # So every block's priors sum to one, group by group.
    prior = dag.node_marginals(logp).exp().sum(-1)
    assert_close(prior, torch.ones_like(prior))


@kinds
@pytest.mark.parametrize("shape", [{}, {"block_size": 1}, {"candidates": 1}, {"block_size": 16}])
@pytest.mark.parametrize("fill", ["every kind", "all anchors", "all masked"])
def test_gradients_are_finite_for_every_kind_of_block(kind, shape, fill):
    model = tiny_model(transition=kind, **shape)
    masked = every_kind_of_mask(model.config)
    if fill != "every kind":
        masked = torch.full_like(masked, fill == "all masked")
    denoised = denoise(model, masked)
    emission = model.emission_logp(denoised, random_ids(model.config).view(denoised.nodes.masked.shape))
    transition = model.transition_logp(denoised)
    total = dag.forward_logp(emission, transition).sum()
    if fill == "all anchors":
        assert_close(total.item(), 0.0, atol=1e-5, rtol=0)
    grads = gradients(model, total)
    assert all(grad.isfinite().all() for grad in grads.values())
    if fill != "all anchors" and model.config.candidates > 1:
        assert grads["graph.transition.query.weight"].any()


def test_families_without_a_graph_have_certain_transitions():
    model = tiny_model("bd3lm")
    assert torch.equal(model.transition_logp(denoise(model)), torch.zeros(4, 4, 4, 1, 1))


def test_gated_transitions_refuse_heads_that_do_not_divide_the_width():
    shape = {"architecture": "llama", "width": 100, "heads": 3, "head_width": 32, "transition": "gated"}
    with pytest.raises(ConfigError, match="a multiple of heads, got 100 and 3"):
        tiny_model("dadlm", **shape)

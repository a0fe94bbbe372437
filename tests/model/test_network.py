"""Models as a whole: parameter counts of the paper, K = 1 as BD3LM, settings that make no model."""

import pytest
import torch
from tests.model.tiny import gradients, random_ids, random_noise, tiny_config, tiny_model
from torch.testing import assert_close

from dadlm.errors import ConfigError
from dadlm.model import Model, ModelConfig, eval_mode
from dadlm.model.architecture import ARCHITECTURES, Lean
from dadlm.model.checkpoint import count_parameters
from dadlm.objective import losses


def test_counting_agrees_with_a_real_model_and_counts_a_tied_head_once():
    for tied in (True, False):
        config = tiny_config(tie_embedding=tied)
        assert count_parameters(config)["total"] == sum(p.numel() for p in Model(config).parameters())
    tied, apart = (count_parameters(tiny_config(tie_embedding=t))["total"] for t in (True, False))
    assert apart - tied == 30 * 32


def test_dadlm_adds_the_graph_only():
    extra = count_parameters(ModelConfig(family="dadlm"))["total"]
    plain = count_parameters(ModelConfig(family="bd3lm"))["total"]
    assert extra - plain == 768 + 4 * 768 + 2 * 768**2 + 1


@pytest.mark.parametrize("architecture", ["lean", "bd3lm"])
@pytest.mark.parametrize("expand_at", [0, 1])
@pytest.mark.parametrize("transition", ["single", "gated"])
def test_one_candidate_with_a_zero_embedding_is_bd3lm_exactly(architecture, expand_at, transition):
    shape = {"architecture": architecture, "expand_at": expand_at, "transition": transition}
    ours = tiny_model("dadlm", candidates=1, **shape)
    assert ours.graph is not None
    with torch.no_grad():
        ours.graph.candidate.zero_()
    plain = tiny_model("bd3lm", seed=1, **shape)
    plain.load_state_dict({n: p for n, p in ours.state_dict().items() if not n.startswith("graph")})
    ids, noise = random_ids(plain.config), random_noise(plain)
    one, other = losses(ours, ids, noise), losses(plain, ids, noise)
    for name in ("train", "reconstruction", "bound"):
        assert_close(getattr(one, name), getattr(other, name), atol=1e-6, rtol=1e-6)
    grads, truth = gradients(ours, one.train.mean()), gradients(plain, other.train.mean())
    for name, grad in truth.items():
        assert_close(grads[name], grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["ar", "mdlm", "bd3lm", "dadlm"])
def test_fresh_published_network_starts_at_the_uniform_distribution(family):
    """Zero-initialised head and modulation: every token costs log(V - 1), the mask being impossible."""
    model = Model(tiny_config(family, architecture="bd3lm", track_bias=None))
    noise = None if family == "ar" else random_noise(model)
    loss = losses(model, random_ids(model.config), noise).train
    if noise is None:
        assert_close(loss, torch.full_like(loss, 29.0).log())
    else:
        count = noise.masked.view(*noise.time.shape, -1).sum(-1)
        assert_close(loss, noise.weight * count * torch.tensor(29.0).log())


def test_dropout_acts_in_training_only():
    model = tiny_model("bd3lm", dropout=0.5)
    ids, noise = random_ids(model.config), random_noise(model)
    still = [losses(model, ids, noise).train for _ in range(2)]
    model.train()
    moving = [losses(model, ids, noise).train for _ in range(2)]
    assert torch.equal(*still) and not torch.allclose(*moving)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"candidates": 0}, "candidates must be at least 1, got 0"),
        ({"block_size": 0}, "block_size must be at least 1"),
        ({"layers": 0}, "layers must be at least 1"),
        ({"context": 18}, "context 18 is not divisible by block_size 4; use a context of 16"),
        ({"context": 3}, "context 3 is not divisible by block_size 4; use a context of 4"),
        ({"expand_at": 2}, "expand_at must be in 0..1"),
        ({"expand_at": -1}, "expand_at must be at least 0"),
        ({"family": "gpt"}, "unknown family 'gpt'; choose one of ar, mdlm, bd3lm, dadlm"),
        ({"architecture": "big"}, "unknown architecture 'big'"),
        ({"transition": "double"}, "unknown transition 'double'"),
        ({"width": 36}, "multiple of 2·heads = 8"),
        ({"heads": 3}, "multiple of 2·heads = 6"),
        ({"architecture": "bd3lm", "tie_embedding": True}, "set tie_embedding to False"),
        ({"dropout": 1.0}, "dropout must be below 1"),
        ({"dropout": float("nan")}, "dropout must be finite"),
        ({"eot_id": 29}, "eot_id 29 must lie below the mask id 29"),
        ({"eot_id": -1}, "eot_id must be at least 0"),
    ],
)
def test_impossible_settings_are_refused(bad, says):
    with pytest.raises(ConfigError, match=says):
        tiny_config(**bad)


def test_context_need_not_fit_a_block_size_that_is_not_used():
    assert tiny_config("ar", context=18).block == 1
    assert tiny_config("mdlm", context=18).block == 18


def test_a_new_architecture_is_a_class_and_an_entry(monkeypatch):
    class Wide(Lean):
        mlp_inputs = 2

        @staticmethod
        def activate(hidden):
            return hidden.chunk(2, -1)[0].relu()

    monkeypatch.setitem(ARCHITECTURES, "wide", Wide)
    model = Model(tiny_config(architecture="wide"))
    assert model.backbone.layers[0].up.out_features == 2 * 4 * 32
    assert losses(model, random_ids(model.config), random_noise(model)).train.isfinite().all()


@pytest.mark.parametrize("family", ["ar", "mdlm", "bd3lm", "dadlm"])
def test_forward_scores_every_family_as_blocks(family):
    model = tiny_model(family)
    ids, noise = random_ids(model.config), None if family == "ar" else random_noise(model)
    shape = {"ar": (4, 15, 1, 1), "mdlm": (4, 1, 16, 1), "bd3lm": (4, 4, 4, 1), "dadlm": (4, 4, 4, 3)}[family]
    scores = model(ids, noise)
    assert scores.emission_logp.shape == shape and (scores.emission_logp <= 0).all()
    assert (scores.transition_logp is not None) == (family == "dadlm")
    bare = model(ids, noise, emissions=False)
    assert bare.emission_logp is None and torch.equal(bare.hidden, scores.hidden)


def test_blocks_see_the_clean_text_that_is_given():
    model = tiny_model("bd3lm")
    ids, noise = random_ids(model.config), random_noise(model)
    other = (ids + 1) % 28
    assert torch.equal(model(ids, noise, clean=ids).hidden, model(ids, noise).hidden)
    found = model(ids, noise, clean=other).hidden.view(4, 4, 4, -1)
    assert torch.equal(found[:, 0], model(ids, noise).hidden.view(4, 4, 4, -1)[:, 0]), "nothing before it"
    assert not torch.allclose(found[:, 1:], model(ids, noise).hidden.view(4, 4, 4, -1)[:, 1:])


def test_eval_mode_is_left_as_it_was_entered():
    training, evaluated = tiny_model().train(), tiny_model().eval()
    with pytest.raises(ValueError), eval_mode(training, evaluated):
        assert not training.training and not evaluated.training
        raise ValueError
    assert training.training and not evaluated.training

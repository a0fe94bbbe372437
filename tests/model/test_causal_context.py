"""A clean stream that is strictly causal: who sees what, and the same states and losses as an AR model's."""

from dataclasses import replace

import pytest
import torch
from tests.model.reference import reference
from tests.model.tiny import dense_twin, gradients, random_ids, random_noise, tiny_model
from torch import Tensor
from torch.testing import assert_close

from dadlm.errors import ConfigError
from dadlm.model import Context, Model, in_mode
from dadlm.model.checkpoint import set_weights, weights
from dadlm.noise import Noise
from dadlm.objective import losses

N = 4
KINDS = {
    "bd3lm": {"family": "bd3lm"},
    "dadlm": {"family": "dadlm", "candidate_offset": 0.3},
    "late": {"family": "dadlm", "expand_at": 1},
    "edges": {"family": "dadlm", "edge": "bilinear", "edge_rank": 5},
    "published": {"family": "bd3lm", "architecture": "bd3lm"},
    "llama": {"family": "bd3lm", "architecture": "llama", "kv_heads": 2},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def causal(kind: str, **changes) -> Model:
    return tiny_model(**KINDS[kind], causal_context=True, **changes)


def ar_of(model: Model) -> Model:
    """A model of family ar of its own, with copies of the weights."""
    twin = Model(replace(model.config, family="ar", edge="none", causal_context=False)).eval()
    own = weights(twin).keys()
    set_weights(twin, {name: tensor for name, tensor in weights(model).items() if name in own}, "the test")
    return twin


@every_kind
def test_the_clean_states_are_those_of_an_ar_model(kind):
    model = causal(kind)
    ids = random_ids(model.config)
    truth = ar_of(model).read(ids)
    assert torch.equal(model.read(ids), truth)
    assert torch.equal(in_mode(model, "ar").read(ids), truth)


def test_blocks_of_one_token_are_causal_anyway():
    """With block_size 1 the switch changes no state and no loss."""
    models = [tiny_model("bd3lm", block_size=1, causal_context=on) for on in (False, True)]
    ids, noise = random_ids(models[0].config), random_noise(models[0])
    states, values = zip(*((m.read(ids), losses(m, ids, noise).train) for m in models), strict=True)
    assert torch.equal(*states) and torch.equal(*values)
    assert torch.equal(states[1], ar_of(models[1]).read(ids))


@every_kind
@pytest.mark.parametrize("position", [1, 5, 7, 8, 15])
def test_a_later_clean_token_changes_no_earlier_state(kind, position):
    model = causal(kind)
    ids = random_ids(model.config)
    other = ids.clone()
    other[:, position] = (other[:, position] + 7) % model.config.mask_id
    before, after = model.read(ids), model.read(other)
    assert torch.equal(before[:, :position], after[:, :position])
    assert (before - after)[:, position:].abs().amax(-1).gt(1e-5).all()


def test_no_gradient_reaches_a_later_clean_token():
    model, kept = causal("bd3lm"), []
    model.backbone.embedding.register_forward_hook(lambda *a: kept.append(a[2].requires_grad_()) or None)
    hidden = model.read(random_ids(model.config, 1))
    for i in range(hidden.shape[1]):
        [grad] = torch.autograd.grad(hidden[0, i].sum(), kept[0], retain_graph=True)
        reached = grad[0].abs().amax(-1) > 0
        assert reached[: i + 1].all() and not reached[i + 1 :].any()


@every_kind
def test_a_block_sees_all_clean_tokens_before_it(kind):
    model = causal(kind)
    ids, noise = random_ids(model.config), random_noise(model)

    def of_block(text: Tensor, block: int) -> Tensor:
        context = Context()
        model.read(text, context, only_context=True)
        blocks, masked, first = noise.split_blocks(ids, N)
        how = blocks[:, [block]], masked[:, [block]], first[:, [block]], context
        return model.denoise(*how, packed=False).hidden

    for position in range(16):
        other = ids.clone()
        other[:, position] = (other[:, position] + 7) % model.config.mask_id
        for block in range(4):
            changed = (of_block(ids, block) - of_block(other, block)).abs().amax((1, 2)) > 0
            assert bool(changed.all()) == bool(changed.any()) == (position < block * N)


@pytest.mark.parametrize("kind", ["bd3lm", "dadlm", "late", "published"])
def test_states_are_those_of_the_network_of_the_notes(kind):
    """Node by node in fp64, under one mask over everything."""
    model = causal(kind)
    ids, noise = random_ids(model.config), random_noise(model)
    context = Context()
    clean = model.read(ids, context)
    denoised = model.denoise(*noise.split_blocks(ids, N), context)
    groups = denoised.nodes.groups(denoised.nodes.to_slots(denoised.hidden))
    for b in range(2):
        states, truth = reference(model, ids[b], noise.masked[b])
        assert_close(clean[b].double(), truth, atol=2e-5, rtol=1e-5)
        for (block, place, candidate), state in states.items():
            if place >= 0:
                assert_close(groups[b, block, place, candidate].double(), state, atol=2e-5, rtol=1e-5)


@every_kind
def test_losses_and_gradients_are_those_of_the_dense_twin_and_of_an_ar_model(kind):
    model = causal(kind)
    twin, ids, noise = dense_twin(model), random_ids(model.config), random_noise(model)
    ours, truth = (losses(m, ids, noise, next_tokens=True) for m in (model, twin))
    for name in ("train", "bound", "next_token"):
        assert_close(getattr(ours, name), getattr(truth, name), atol=2e-5, rtol=1e-5)
    assert ours.next_token is not None and truth.next_token is not None
    joint = [gradients(m, x.train.mean() + x.next_token.mean()) for m, x in ((model, ours), (twin, truth))]
    for name in joint[1]:
        assert_close(joint[0][name], joint[1][name], atol=2e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
    ar = ar_of(model)
    said = losses(ar, ids, None).train
    assert torch.equal(ours.next_token, said)
    own = gradients(model, losses(model, ids, noise, next_tokens=True).next_token.mean())  # type: ignore[union-attr]
    for name, grad in gradients(ar, said.mean()).items():
        assert_close(own[name], grad, atol=1e-7, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@every_kind
def test_the_ar_loss_is_an_addition(kind):
    """The losses of diffusion are the same with and without it, and the loss mask cuts both."""
    model = causal(kind)
    ids, noise = random_ids(model.config), random_noise(model)
    without, both = losses(model, ids, noise), losses(model, ids, noise, next_tokens=True)
    assert without.next_token is None and both.next_token is not None
    assert torch.equal(without.train, both.train) and torch.equal(without.bound, both.bound)
    mask = torch.arange(16).expand_as(ids) >= 6
    cut = losses(model, ids, noise, next_tokens=True, loss_mask=mask).next_token
    assert cut is not None
    assert_close(cut, both.next_token * mask[:, 1:])


def test_the_context_differs_from_that_of_whole_blocks():
    on, off = causal("bd3lm"), tiny_model("bd3lm")
    ids, noise = random_ids(on.config), random_noise(on)
    assert not torch.equal(losses(on, ids, noise).train[:, 1:], losses(off, ids, noise).train[:, 1:])
    assert torch.equal(losses(on, ids, noise).train[:, 0], losses(off, ids, noise).train[:, 0])


def test_rows_do_not_depend_on_the_batch():
    model = causal("dadlm")
    ids, noise = random_ids(model.config), random_noise(model)
    whole = losses(model, ids, noise, next_tokens=True)
    for row in range(4):
        part = Noise(noise.masked[row : row + 1], noise.time[row : row + 1], noise.weight[row : row + 1])
        alone = losses(model, ids[row : row + 1], part, next_tokens=True)
        assert_close(alone.train, whole.train[row : row + 1], atol=1e-5, rtol=1e-5)
        assert_close(alone.next_token, whole.next_token[row : row + 1], atol=1e-5, rtol=1e-5)  # type: ignore[index]


def test_the_ar_model_shares_the_weights_and_follows_them():
    model = causal("edges")
    view, ids = in_mode(model, "ar"), random_ids(model.config)
    assert view is in_mode(model, "ar") and view.config.family == "ar"
    assert {p.data_ptr() for p in view.parameters()} <= {p.data_ptr() for p in model.parameters()}
    assert "views" not in dict(model.named_modules()) and view.head.offset is None and view.head.edge is None
    with torch.no_grad():
        model.backbone.layers[0].up.weight.mul_(0.5)  # type: ignore[union-attr]
    assert torch.equal(view.read(ids), ar_of(model).read(ids))
    assert in_mode(model.train(), "ar").training and not in_mode(model.eval(), "ar").training


def test_in_mode_returns_the_model_where_there_is_nothing_to_change():
    for model in (tiny_model("ar"), tiny_model("dadlm"), tiny_model("mdlm"), causal("late")):
        assert in_mode(model, "diffusion") is model
    assert in_mode(ar := tiny_model("ar"), "ar") is ar


@pytest.mark.parametrize("family", ["mdlm", "bd3lm", "dadlm"])
def test_a_model_that_reads_blocks_has_no_mode_ar(family):
    with pytest.raises(ConfigError, match=r"mode ar .* dadlm train lab-bd3lm --model\.causal-context"):
        in_mode(tiny_model(family), "ar")


def test_mdlm_has_no_clean_text():
    with pytest.raises(ConfigError, match="mdlm reads no clean text"):
        tiny_model("mdlm", causal_context=True)


def test_a_causal_model_stays_what_it_was():
    """The weights of a Llama-architecture AR model, put into a BD3LM with a causal context."""
    ar = tiny_model("ar", architecture="llama", kv_heads=2)
    both = Model(replace(ar.config, family="bd3lm", causal_context=True)).eval()
    set_weights(both, weights(ar), "the test")
    ids = random_ids(ar.config)
    assert torch.equal(in_mode(both, "ar").read(ids), ar.read(ids))

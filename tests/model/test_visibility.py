"""Who may know what: no token leaks into its own prediction, no later block into an earlier one."""

import pytest
import torch
from tests.model.tiny import every_kind_of_mask, random_ids, random_noise, tiny_model
from torch import Tensor

from dadlm.model import Context, Model
from dadlm.noise import Noise
from dadlm.objective import losses

N = 4
block_families = pytest.mark.parametrize(
    ("family", "expand_at"), [("bd3lm", 0), ("dadlm", 0), ("dadlm", 1)], ids=["bd3lm", "dadlm", "late"]
)


def slots(model: Model, ids: Tensor, masked: Tensor) -> Tensor:
    """Final hidden states [B, G, M, D] by slot."""
    context = Context()
    model.read(ids, context, only_context=True)
    denoised = model.denoise(*Noise.of(masked).split_blocks(ids, N), context)
    return denoised.nodes.to_slots(denoised.hidden)


def other(ids: Tensor, position: int, mask_id: int) -> Tensor:
    changed = ids.clone()
    changed[:, position] = (changed[:, position] + 7) % mask_id
    return changed


@block_families
@pytest.mark.parametrize("position", [5, 7, 8, 15])
def test_the_true_id_of_a_masked_token_reaches_no_node_of_its_block(family, expand_at, position):
    """The clean copy of a block is context for later blocks only."""
    model = tiny_model(family, expand_at=expand_at)
    ids, masked = random_ids(model.config), every_kind_of_mask(model.config)
    masked[:, position] = True
    before, after = (
        slots(model, ids, masked),
        slots(model, other(ids, position, model.config.mask_id), masked),
    )
    own = position // N
    assert torch.equal(before[:, : own + 1], after[:, : own + 1])
    assert (before - after)[:, own + 1 :].abs().amax((-1, -2)).gt(1e-4).all()  # later blocks do read it


@block_families
def test_a_token_at_an_anchor_is_seen_by_its_block(family, expand_at):
    model = tiny_model(family, expand_at=expand_at)
    ids, masked = random_ids(model.config), every_kind_of_mask(model.config)
    masked[:, 5] = False
    before, after = slots(model, ids, masked), slots(model, other(ids, 5, model.config.mask_id), masked)
    assert torch.equal(before[:, :1], after[:, :1])
    assert (before - after)[:, 1].abs().amax((-1, -2)).gt(1e-4).all()


def test_the_true_id_of_a_masked_token_reaches_no_state_of_mdlm():
    model = tiny_model("mdlm")
    ids = random_ids(model.config)
    noise = random_noise(model)
    noise.masked[:, 5] = True
    noise.masked[:, 6:8] = False
    hidden = [
        model.read(tokens.masked_fill(noise.masked, model.config.mask_id))
        for tokens in (ids, other(ids, 5, model.config.mask_id), other(ids, 6, model.config.mask_id))
    ]
    assert torch.equal(hidden[0], hidden[1])
    assert not torch.allclose(hidden[0], hidden[2])


@block_families
@pytest.mark.parametrize("position", [4, 9, 15])
def test_changing_a_later_block_never_changes_the_loss_of_an_earlier_one(family, expand_at, position):
    model = tiny_model(family, expand_at=expand_at)
    ids, noise = random_ids(model.config), random_noise(model)
    before = losses(model, ids, noise)
    after = losses(model, other(ids, position, model.config.mask_id), noise)
    flipped = random_noise(model)
    flipped.masked[:, position] ^= True
    remasked = losses(model, ids, flipped)
    own = position // N
    for name in ("train", "reconstruction", "bound"):
        assert torch.equal(getattr(before, name)[:, :own], getattr(after, name)[:, :own])
        assert torch.equal(getattr(before, name)[1:, :own], getattr(remasked, name)[1:, :own])
        assert not torch.equal(getattr(before, name)[:, own:], getattr(after, name)[:, own:])


@block_families
def test_noise_of_an_earlier_block_is_invisible_to_a_later_one(family, expand_at):
    """A block sees the clean copy of what precedes it, whatever was masked there."""
    model = tiny_model(family, expand_at=expand_at)
    ids, masked = random_ids(model.config), every_kind_of_mask(model.config)
    remasked = masked.clone()
    remasked[:, :8] ^= True
    before, after = (model(ids, Noise.of(mask)) for mask in (masked, remasked))
    assert not torch.equal(before.emission_logp[:, :2], after.emission_logp[:, :2])
    for ours, theirs in zip(before[2:5], after[2:5], strict=True):
        if ours is None:
            assert theirs is None and family == "bd3lm"
            continue
        torch.testing.assert_close(ours[:, 2:], theirs[:, 2:], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("expand_at", [0, 1])
def test_the_start_node_influences_no_other_node(expand_at):
    model = tiny_model(expand_at=expand_at)
    assert model.graph is not None
    ids, masked = random_ids(model.config), every_kind_of_mask(model.config)
    before = slots(model, ids, masked)
    with torch.no_grad():
        model.graph.start += 1.0
    after = slots(model, ids, masked)
    assert torch.equal(before[:, :, 1:], after[:, :, 1:])
    assert (before - after)[:, :, 0].abs().amax(-1).min() > 1e-2


@pytest.mark.parametrize("expand_at", [0, 1])
def test_candidates_of_one_position_are_told_apart(expand_at):
    model = tiny_model(expand_at=expand_at)
    ids, masked = random_ids(model.config), every_kind_of_mask(model.config)
    groups = slots(model, ids, masked)[:, :, 1:].unflatten(2, (N, 3))[masked.view(4, -1, N)]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert (groups[:, a] - groups[:, b]).abs().amax(-1).min() > 1e-2

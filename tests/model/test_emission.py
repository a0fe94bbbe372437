"""The vocabulary head: the mask is impossible, and pieces give what the whole gives."""

import pytest
import torch
from tests.model.tiny import every_kind_of_mask, random_ids, tiny_model
from torch.testing import assert_close

from dadlm.model import Context, emission
from dadlm.noise import Noise


@pytest.mark.parametrize("architecture", ["lean", "bd3lm"])
def test_the_mask_token_never_has_probability(architecture):
    model = tiny_model(architecture=architecture)
    with torch.no_grad():
        model.head.linear.weight[-1] = 100.0  # as likely as a row of weights can make it
    logits = model.head.logits(torch.randn(7, 32).abs())
    assert logits.shape == (7, 30) and logits.dtype == torch.float32
    assert (logits[:, model.config.mask_id] == -torch.inf).all()
    assert logits[:, :-1].isfinite().all()
    every = torch.arange(29).expand(7, 29)
    logp = model.head.target_logp(torch.randn(7, 32).repeat_interleave(29, 0), every.flatten())
    assert_close(logp.view(7, 29).exp().sum(-1), torch.ones(7))


def test_head_row_of_the_mask_gets_no_gradient():
    model = tiny_model(tie_embedding=False)
    model.head.target_logp(torch.randn(7, 32), torch.arange(7)).sum().backward()
    grad = model.head.linear.weight.grad
    assert grad is not None and grad.isfinite().all()
    assert not grad[-1].any() and grad[:-1].any(-1).all()


@pytest.mark.parametrize("rows", [1, 3, 10, 11])
@pytest.mark.parametrize("per_candidate", [True, False])
@pytest.mark.parametrize("architecture", ["lean", "bd3lm"])
def test_pieces_give_the_values_and_gradients_of_the_whole(rows, per_candidate, architecture, monkeypatch):
    model = tiny_model(candidate_offset=0.3, architecture=architecture)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(11, 32, generator=generator).requires_grad_()
    target = torch.randint(0, 29, (11,), generator=generator)
    candidate = torch.randint(0, 3, (11,), generator=generator) if per_candidate else 1
    weight = torch.randn(11, generator=generator)
    inputs = [hidden, *model.head.parameters()]
    calls, single = [], model.head._target_logp
    monkeypatch.setattr(model.head, "_target_logp", lambda *a: calls.append(len(a[0])) or single(*a))

    def both() -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        logp = model.head.target_logp(hidden, target, candidate)
        return logp, torch.autograd.grad((logp * weight).sum(), inputs)

    whole, whole_grads = both()
    assert calls == [11]
    monkeypatch.setattr(emission, "_CHUNK", rows * 30 + 7)
    pieces, piece_grads = both()
    assert max(calls[1:]) <= rows and sum(calls[1:]) >= 11
    assert_close(pieces, whole)
    for ours, truth in zip(piece_grads, whole_grads, strict=True):
        assert truth.any()
        assert_close(ours, truth)
    with torch.no_grad():
        assert_close(model.head.target_logp(hidden, target, candidate), whole)


@pytest.mark.parametrize("candidate_offset", [None, 0.3])
def test_emissions_are_those_of_each_node_and_certain_at_anchors(candidate_offset, monkeypatch):
    model = tiny_model(candidate_offset=candidate_offset)
    ids, masked, context = random_ids(model.config), every_kind_of_mask(model.config), Context()
    model.read(ids, context, only_context=True)
    blocks, hidden_tokens, first = Noise.of(masked).split_blocks(ids, 4)
    denoised = model.denoise(blocks, hidden_tokens, first, context)
    seen, logits = [], model.head.token_logits
    with monkeypatch.context() as patch:
        patch.setattr(model.head, "token_logits", lambda h, *a: seen.append(len(h)) or logits(h, *a))
        found = model.emission_logp(denoised, blocks)
    assert seen == [3 * int(masked.sum())], "the head runs on the nodes of masked positions only"
    groups = denoised.nodes.groups(denoised.nodes.to_slots(denoised.hidden))
    for b, g, i in torch.cartesian_prod(*map(torch.arange, blocks.shape)).tolist():
        if not hidden_tokens[b, g, i]:
            assert found[b, g, i].tolist() == [0.0, -torch.inf, -torch.inf]
            continue
        for k in range(3):
            logp = model.head.logits(groups[b, g, i, k], k).log_softmax(-1)[blocks[b, g, i]]
            assert_close(found[b, g, i, k], logp, atol=1e-5, rtol=1e-5)

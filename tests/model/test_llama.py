"""The architecture of causal language models: against a plain rewriting of it; what the shift promises."""

from dataclasses import replace

import pytest
import torch
from tests.decode.tiny import prompt_of, silence_eot, tiny
from tests.model.test_visibility import slots
from tests.model.tiny import dense_twin, every_kind_of_mask, random_ids, random_noise, tiny_model
from torch import Tensor

import dadlm
from dadlm.errors import ConfigError
from dadlm.model import Context, Model, ModelConfig, in_mode
from dadlm.model.checkpoint import merged, set_weights, weights, write_model
from dadlm.noise import Noise
from dadlm.objective import losses

N = 4
# Shared keys and values, heads that are wider than width / heads, an MLP of its own size.
LLAMA = {"architecture": "llama", "kv_heads": 2, "head_width": 12, "mlp_width": 40, "rope_theta": 500.0}


def llama(family: str, **changes) -> Model:
    return tiny_model(family, **(LLAMA | {"layers": 2, "heads": 4} | changes))


def rewritten(model: Model, token: list[int], position: list[int], sees: Tensor) -> Tensor:
    """Logits [n, V - 1] of n things, each with a token and a position, that see one another as `sees` [n, n]
    says; head by head, in double precision."""
    w = {name: tensor.double() for name, tensor in weights(model).items()}
    E, heads, shared = 12, 4, 2
    angle = torch.tensor(position).double()[:, None] * 500.0 ** -(torch.arange(0, E, 2).double() / E)

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * w[name]

    def turn(x: Tensor) -> Tensor:
        pair = torch.complex(x[:, : E // 2], x[:, E // 2 :]) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([pair.real, pair.imag], -1)

    x = w["backbone.embedding.weight"][token]
    for layer in range(model.config.layers):
        at = f"backbone.layers.{layer}"
        parts = (norm(x, f"{at}.norm_attention.weight") @ w[f"{at}.qkv.weight"].T).split(E, -1)
        seen = []
        for head in range(heads):
            mate = head // (heads // shared)
            q, k, v = turn(parts[head]), turn(parts[heads + mate]), parts[heads + shared + mate]
            seen.append((q @ k.T / E**0.5).masked_fill(~sees, -torch.inf).softmax(-1) @ v)
        x = x + torch.cat(seen, -1) @ w[f"{at}.out.weight"].T
        gate, up = (norm(x, f"{at}.norm_mlp.weight") @ w[f"{at}.up.weight"].T).split(40, -1)
        x = x + (gate * gate.sigmoid() * up) @ w[f"{at}.down.weight"].T
    return norm(x, "backbone.norm.weight") @ w["backbone.embedding.weight"][:-1].T


def test_read_is_the_plain_causal_network():
    model = llama("ar")
    ids = random_ids(model.config, batch=1)
    ours = model.head.token_logits(model.read(ids))[0].double()
    expected = rewritten(model, ids[0].tolist(), list(range(16)), torch.ones(16, 16, dtype=torch.bool).tril())
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("masks", ["mmmm", "ammm", "maam", "amam", "mamm"])
def test_a_masked_node_takes_the_place_and_the_token_before_it(masks):
    """The third block: its masked tokens stand one place earlier, and no clean token is seen twice."""
    model, first = llama("bd3lm"), 2 * N
    ids = random_ids(model.config, batch=1)
    masked = torch.zeros(1, 16, dtype=torch.bool)
    masked[0, first : first + N] = torch.tensor([one == "m" for one in masks])
    context = Context()
    model.read(ids, context, only_context=True)
    ours = model.head.token_logits(model.denoise(*Noise.of(masked).split_blocks(ids, N), context).hidden)[
        0, first : first + N
    ]

    text, mask = ids[0].tolist(), model.config.mask_id
    token, position = text[:first], list(range(first))
    for place in range(first, first + N):
        stands = place - int(masked[0, place])
        hidden = masked[0, stands] and stands >= first
        token, position = [*token, mask if hidden else text[stands]], [*position, stands]
    sees = torch.zeros(first + N, first + N, dtype=torch.bool)
    sees[:N, :N] = sees[N:first, :first] = sees[first:] = True
    sees[first:, first - 1] = not masked[0, first]
    expected = rewritten(model, token, position, sees)[first:]
    torch.testing.assert_close(ours.double(), expected, atol=1e-5, rtol=1e-5)


def test_blocks_of_one_token_are_the_causal_model():
    causal = llama("ar")
    block = Model(replace(causal.config, family="bd3lm", block_size=1))
    set_weights(block, weights(causal), "the causal model")
    ids = random_ids(causal.config)
    masked = torch.ones_like(ids, dtype=torch.bool)
    masked[:, 0] = False
    noise = Noise(masked, torch.ones(ids.shape), torch.ones(ids.shape))
    exact = losses(causal, ids, None).bound
    torch.testing.assert_close(losses(block, ids, noise).bound[:, 1:], exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("family", "expand_at"), [("bd3lm", 0), ("dadlm", 0), ("dadlm", 1)])
def test_the_dense_twin_agrees(family, expand_at):
    model = llama(family, expand_at=expand_at)
    ids, noise = random_ids(model.config), random_noise(model)
    fast = losses(model, ids, noise)
    torch.testing.assert_close(losses(dense_twin(model), ids, noise).train, fast.train, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("family", "expand_at"), [("bd3lm", 0), ("dadlm", 0), ("dadlm", 1)])
def test_no_masked_token_is_known_to_its_block(family, expand_at):
    model = llama(family, expand_at=expand_at)
    ids, masked = random_ids(model.config), every_kind_of_mask(model.config)
    masked[:, 9] = True
    other = ids.clone()
    other[:, 9] = (ids[:, 9] + 7) % model.config.mask_id
    before, after = (slots(model, tokens, masked) for tokens in (ids, other))
    assert torch.equal(before[:, :3], after[:, :3])
    assert (before - after)[:, 3].abs().amax((-1, -2)).gt(1e-4).all()


@pytest.mark.parametrize("family", ["ar", "bd3lm", "dadlm"])
def test_cached_decoding_is_reading_everything_anew(family):
    model = silence_eot(tiny(family, **(LLAMA | {"heads": 4, "width": 32})))
    prompts = [prompt_of(length) for length in (1, 3, 4, 9, 21)]
    together = dadlm.generate(model, prompts, max_new_tokens=14, seed=5)
    if family == "ar":
        for prompt, tokens in zip(prompts, together.tokens, strict=True):
            greedy = dadlm.generate(model, [prompt], max_new_tokens=4, temperature=0.0).tokens[0]
            for length, token in enumerate(greedy):
                ids = torch.tensor([prompt + greedy[:length]])
                assert int(model.head.token_logits(model.read(ids))[0, -1].argmax()) == token
            assert len(tokens) == 14
        return
    anew = dadlm.generate(model, prompts, max_new_tokens=14, seed=5, cache=False)
    assert together.tokens == anew.tokens
    for row, prompt in enumerate(prompts):  # other rows end earlier and leave the batch: they change nothing
        alone = dadlm.generate(model, [prompt], max_new_tokens=14, seed=5 + row)
        assert alone.tokens == [together.tokens[row]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_heads": 3}, "multiple of kv_heads"),
        ({"kv_heads": 0}, "kv_heads must be at least 1"),
        ({"head_width": 7}, "must be even"),
        ({"family": "mdlm"}, "ar, bd3lm or dadlm"),
        ({"architecture": "lean"}, "only architecture 'llama'"),
        ({"lora": -1}, "lora must be at least 0"),
    ],
)
def test_shapes_that_make_no_sense_are_refused(changes, message):
    shape = {"vocab_size": 30, "eot_id": 28, "context": 16, "block_size": 4, "width": 32, "heads": 4}
    with pytest.raises(ConfigError, match=message):
        ModelConfig(**(shape | LLAMA | changes))


@pytest.mark.parametrize("architecture", ["llama", "lean"])
def test_adapters_begin_as_nothing_learn_alone_and_merge(architecture, tmp_path):
    shape = LLAMA if architecture == "llama" else {}
    plain = tiny_model("dadlm", **shape)
    model = Model(replace(plain.config, lora=3))
    own = weights(model)
    set_weights(model, {name: weights(plain).get(name, own[name]) for name in own}, "plain")
    ids, noise = random_ids(model.config), random_noise(model)
    torch.testing.assert_close(losses(model, ids, noise).train, losses(plain, ids, noise).train)

    losses(model, ids, noise).train.sum().backward()
    learns = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert learns == {name for name in own if "lora_" in name or "graph" in name or "mask_change" in name}
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    after = losses(model, ids, noise).train
    assert (after - losses(plain, ids, noise).train).abs().max() > 0.1
    together = merged(model)
    assert weights(together).keys() == weights(plain).keys()
    torch.testing.assert_close(losses(together, ids, noise).train, after, atol=1e-4, rtol=1e-4)

    dadlm.save(model, tmp_path / "plain")  # what is shipped has no adapters, a checkpoint has
    assert dadlm.load(tmp_path / "plain").config == plain.config
    (tmp_path / "kept").mkdir()
    write_model(tmp_path / "kept", model)
    kept = dadlm.load(tmp_path / "kept")
    assert kept.config.lora == 3 and torch.equal(losses(kept, ids, noise).train, after)


@pytest.mark.parametrize("architecture", ["llama", "lean"])
def test_gated_adapters_leave_the_causal_mode_as_it_was(architecture, tmp_path):
    shape = (LLAMA if architecture == "llama" else {}) | {"causal_context": True}
    plain = tiny_model("dadlm", **shape).eval()
    model = Model(replace(plain.config, lora=3, lora_gated=True)).eval()
    own = weights(model)
    set_weights(model, {name: weights(plain).get(name, own[name]) for name in own}, "plain")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    ids, noise = random_ids(model.config), random_noise(model)
    assert (losses(model, ids, noise).train - losses(plain, ids, noise).train).abs().max() > 0.1
    dadlm.save(model, tmp_path / "saved")
    for one in (model, dadlm.load(tmp_path / "saved")):
        assert one.config.lora_gated
        with torch.inference_mode():
            assert torch.equal(in_mode(one, "ar").read(ids), in_mode(plain, "ar").read(ids))
    with pytest.raises(ConfigError, match="lora_gated"):
        replace(plain.config, lora_gated=True)

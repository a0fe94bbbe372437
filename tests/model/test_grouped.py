"""Keys and values that several queries share, against the same ones repeated for every query: attention part
by part, whole networks, and texts out of a cache that holds each of them once."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.decode.tiny import prompt_of, tiny
from tests.model.test_attention import blocks_of_every_kind
from tests.model.tiny import dense_twin, gradients, random_ids, random_noise, tiny_model
from torch import Tensor
from torch.testing import assert_close

from dadlm import generate
from dadlm.decode.cache import Cache, bytes_per_slot
from dadlm.model import Model, attention, attention_dense
from dadlm.model.checkpoint import set_weights, weights
from dadlm.objective import losses

LLAMA = {"architecture": "llama", "heads": 6, "kv_heads": 2, "head_width": 10}
B, H, SHARED, E = 4, 6, 3, 10


def without_groups(model: Model) -> Model:
    """Keys and values for every head, whose weights are those of their group."""
    own, twin = weights(model), Model(replace(model.config, kv_heads=None)).train(model.training)
    queries, keys, width = model.config.heads, model.config.key_heads, model.config.query_width
    for name, weight in own.items():
        if ".qkv." in name:
            q, k, v = weight.unflatten(0, (-1, width)).split([queries, keys, keys])
            k, v = (x.repeat_interleave(queries // keys, 0) for x in (k, v))
            own[name] = torch.cat([q, k, v]).flatten(0, 1)
    set_weights(twin, own, "the test")
    return twin


def check(attend: Callable[..., Tensor], *shapes: tuple[int, int]) -> None:
    """Values and gradients of attend(q, k, v, ...) for queries and then keys and values of these shapes."""
    heads = [H] + [H // SHARED] * (len(shapes) - 1)
    inputs = [torch.randn(*shape, h, E, requires_grad=True) for shape, h in zip(shapes, heads, strict=True)]
    found = []
    for repeats in (1, SHARED):
        repeated = (x.repeat_interleave(repeats, 2) for x in inputs[1:])
        out = attend(inputs[0], *repeated)
        probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
        found.append((out, *torch.autograd.grad((out * probe).sum(), inputs, materialize_grads=True)))
    assert found[0][0].any()
    for grouped, truth in zip(*found, strict=True):
        assert_close(grouped, truth, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("block", [1, 4, 12, None])
def test_clean_text(block):
    visible = (torch.arange(12) // 4 * 4 + 4).expand(B, -1)
    check(lambda *qkv: attention.attend_read(*qkv, visible, block), *[(B, 12)] * 3)


@pytest.mark.parametrize("attend", [attention.attend_nodes, attention_dense.attend_nodes])
@pytest.mark.parametrize("packed", [True, False])
def test_nodes(attend, packed):
    nodes = blocks_of_every_kind(packed)
    C = nodes.visible.shape[1]
    check(lambda q, k, v, *prefix: attend(q, k, v, prefix, nodes), *[(B, C)] * 3, *[(B, 16)] * 2)


def test_trees():
    visible, sees = torch.arange(B)[:, None].expand(B, 5), torch.rand(B, 5, 5) < 0.5
    sees |= torch.eye(5, dtype=torch.bool)
    check(
        lambda q, k, v, *prefix: attention.attend_tree(q, k, v, prefix, visible, sees),
        *[(B, 5)] * 3,
        *[(B, 7)] * 2,
    )


@pytest.mark.parametrize("family", ["ar", "bd3lm", "dadlm"])
def test_networks(family):
    """Losses, and the gradient of what is shared: the sum of those of its copies."""
    model = tiny_model(family, **LLAMA)
    ids, noise = random_ids(model.config), None if family == "ar" else random_noise(model)
    models = [model, without_groups(model), dense_twin(model)]
    values = [losses(one, ids, noise).train for one in models]
    assert_close(values[0], values[1], atol=1e-5, rtol=1e-5)
    assert_close(values[0], values[2], atol=1e-4, rtol=1e-4)
    shared, own = (gradients(one, loss.sum()) for one, loss in zip(models[:2], values[:2], strict=True))
    for name, grad in shared.items():
        truth = own[name]
        if ".qkv." in name:
            q, k, v = truth.unflatten(0, (-1, E)).split(H)
            k, v = (x.unflatten(0, (-1, SHARED)).sum(1) for x in (k, v))
            truth = torch.cat([q, k, v]).flatten(0, 1)
        assert_close(grad, truth, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("family", "how"),
    [
        ("ar", {}),
        ("ar", {"mode": "lossless", "tree": 5}),
        ("bd3lm", {"causal_context": True}),
        ("dadlm", {"causal_context": True, "mode": "lossless", "tree": 5}),
        ("dadlm", {"causal_context": True, "mode": "ar"}),
        ("dadlm", {"sampler": "confidence"}),
    ],
)
def test_texts(family, how):
    how = dict(how)
    model = tiny(family, **LLAMA, causal_context=how.pop("causal_context", False))
    prompts = [prompt_of(length) for length in (1, 3, 4, 9, 21)]
    texts = [
        generate(one, prompts, max_new_tokens=14, seed=5, **how).tokens
        for one in (model, without_groups(model))
    ]
    assert texts[0] == texts[1] and len({tuple(text) for text in texts[0]}) > 1


def test_the_cache_holds_them_once():
    model = tiny("bd3lm", **LLAMA)
    cache, size = Cache(model, 3, 64), bytes_per_slot(model, 64)
    assert cache.k.nbytes + cache.v.nbytes == 3 * size
    assert size * SHARED == bytes_per_slot(without_groups(model), 64)

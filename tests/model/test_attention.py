"""Two-part attention against its dense twin, and the whole network against a node-by-node reference."""

import importlib.util
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.model.reference import reference
from tests.model.tiny import dense_twin, every_kind_of_mask, gradients, random_ids, tiny_model
from torch import Tensor
from torch.testing import assert_close

from dadlm.model import Context, Denoised, Model, attention, attention_dense
from dadlm.model.layer import rotate, rotation
from dadlm.nodes import Nodes, lay_out, layout
from dadlm.noise import Noise

B, G, N, K, H, E = 4, 4, 4, 3, 2, 6


def real(nodes: Nodes) -> Tensor:
    """[B, C]: nodes that exist, no padding and no inactive slot."""
    here = nodes.active.flatten(2)
    if nodes.start:
        here = torch.cat([torch.ones_like(here[..., :1]), here], -1)
    return nodes.from_slots(here)


def blocks_of_every_kind(packed: bool = True) -> Nodes:
    masked = torch.rand(B, G, N, generator=torch.Generator().manual_seed(0)) < 0.5
    masked[1, 0], masked[1, 1], masked[2], masked[3] = True, False, True, False
    first = torch.arange(0, G * N, N).expand(B, -1)
    return lay_out(masked, first, candidates=K, start=True, packed=packed)


def hidden_states(model: Model, ids: Tensor, masked: Tensor, packed: bool = True) -> Denoised:
    context = Context()
    model.read(ids, context, only_context=True)
    return model.denoise(*Noise.of(masked).split_blocks(ids, model.config.block_size), context, packed=packed)


@pytest.fixture(params=["exact", "padded"])
def spare(request, monkeypatch) -> None:
    if request.param != "exact":
        monkeypatch.setattr(layout, "capacity", lambda count, full, exact: count + 5)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("with_prefix", [True, False])
@pytest.mark.parametrize("scale", [1.0, 40.0], ids=["mild scores", "scores in the hundreds"])
def test_merged_attention_is_the_dense_one(packed, with_prefix, scale, spare):
    nodes = blocks_of_every_kind(packed)
    generator, C = torch.Generator().manual_seed(1), nodes.visible.shape[1]
    q, k, v = (torch.randn(B, C, H, E, generator=generator).requires_grad_() for _ in range(3))
    pk, pv = (torch.randn(B, G * N, H, E, generator=generator).requires_grad_() for _ in range(2))
    inputs = [q, k, v, *((pk, pv) if with_prefix else ())]
    here = real(nodes)
    weight = torch.randn(B, C, H, E, generator=generator) * here[..., None, None]
    results = []
    for attend in (attention.attend_nodes, attention_dense.attend_nodes):
        out = attend(scale * q, k, v, (pk, pv) if with_prefix else None, nodes)
        results.append((out[here], torch.autograd.grad((out * weight).sum(), inputs)))
    (merged, merged_grads), (dense, dense_grads) = results
    close = 1e-5 if scale == 1 else 1e-4  # a score of 200 is itself rounded by 1.5e-5
    assert_close(merged, dense, atol=close, rtol=close)
    for ours, truth in zip(merged_grads, dense_grads, strict=True):
        assert_close(ours, truth, atol=close * scale, rtol=close)


def test_a_node_without_prefix_gives_no_nan_and_no_gradient_to_the_prefix():
    masked = torch.ones(1, 1, N, dtype=torch.bool)
    nodes = lay_out(masked, torch.zeros(1, 1, dtype=torch.long), candidates=K, start=True)
    q, k, v, pk, pv = (torch.randn(1, n, H, E).requires_grad_() for n in (13, 13, 13, 8, 8))
    out = attention.attend_nodes(q, k, v, (pk, pv), nodes)
    grads = torch.autograd.grad(out.square().sum(), (q, k, v, pk, pv))
    assert torch.equal(out, attention.attend_nodes(q, k, v, None, nodes))
    assert all(grad.isfinite().all() for grad in grads) and grads[0].any()
    assert not grads[3].any() and not grads[4].any()


@pytest.mark.parametrize("architecture", ["lean", "bd3lm"])
@pytest.mark.parametrize("expand_at", [0, 1, 2])
@pytest.mark.parametrize("packed", [True, False])
def test_network_with_merged_and_dense_attention(architecture, expand_at, packed, spare):
    model = tiny_model(architecture=architecture, expand_at=expand_at, layers=3)
    ids, masked = random_ids(model.config), every_kind_of_mask(model.config)
    results = []
    for one in (model, dense_twin(model)):
        denoised = hidden_states(one, ids, masked, packed)
        here = real(denoised.nodes)
        weight = torch.randn(denoised.hidden.shape, generator=torch.Generator().manual_seed(3))
        scalar = (denoised.hidden * weight * here[..., None]).sum() / here.sum()
        results.append((denoised.hidden[here], gradients(one, scalar)))
    (merged, merged_grads), (dense, dense_grads) = results
    assert_close(merged, dense, atol=1e-5, rtol=1e-5)
    for name, truth in dense_grads.items():
        assert_close(merged_grads[name], truth, atol=1e-5, rtol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
    assert all(
        grad.any() for name, grad in dense_grads.items() if "head" not in name and "transition" not in name
    )


@pytest.mark.parametrize("architecture", ["lean", "bd3lm"])
@pytest.mark.parametrize(
    ("family", "expand_at"), [("bd3lm", 0), ("dadlm", 0), ("dadlm", 2)], ids=["bd3lm", "dadlm", "late"]
)
def test_network_is_the_one_of_the_notes_node_by_node(architecture, family, expand_at):
    """The mask over [x_t ; x_0] with 2n positions that restart, for the noisy and the clean half."""
    model = tiny_model(family, architecture=architecture, expand_at=expand_at, layers=3)
    ids, masked = random_ids(model.config), every_kind_of_mask(model.config)
    denoised, clean = hidden_states(model, ids, masked), model.read(ids)
    slots = denoised.nodes.to_slots(denoised.hidden)
    groups = denoised.nodes.groups(slots)
    for b in range(len(ids)):
        noisy, truth = reference(model, ids[b], masked[b])
        assert_close(clean[b].double(), truth, atol=2e-5, rtol=1e-5)
        assert len(noisy) == int(real(denoised.nodes)[b].sum())
        for (block, place, candidate), state in noisy.items():
            ours = slots[b, block, 0] if place < 0 else groups[b, block, place, candidate]
            assert_close(ours.double(), state, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(("family", "block"), [("ar", 1), ("mdlm", 16), ("bd3lm", 4)])
def test_kernels_without_a_mask_read_as_the_masked_one_does(family, block):
    model = tiny_model(family)
    ids = random_ids(model.config)
    position = torch.arange(ids.shape[1]).expand_as(ids)  # given, so that no pattern is assumed
    assert_close(model.read(ids), model.read(ids, position=position), atol=1e-5, rtol=1e-5)
    visible = (position // block + 1) * block
    assert_close(model.read(ids), model.read(ids, visible=visible), atol=1e-5, rtol=1e-5)


def test_only_context_leaves_the_same_keys_and_values():
    model = tiny_model(layers=3)
    ids, whole, short = random_ids(model.config), Context(), Context()
    model.read(ids, whole)
    model.read(ids, short, only_context=True)
    for layer in range(3):
        for full, cut_off in zip(whole[layer], short[layer], strict=True):
            assert torch.equal(full, cut_off)


def test_rotary_turns_by_the_difference_of_positions_only():
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64).float()
    at = lambda x, p: rotate(x, rotation(torch.tensor([[p]]), 8))  # noqa: E731
    products = [float((at(q, p) * at(k, p + 5)).sum()) for p in (-1, 0, 7, 300)]
    assert_close(products, [products[0]] * 4, atol=1e-4, rtol=0)
    assert torch.equal(at(q, 0), q)
    assert not torch.allclose(at(q, -1), at(q, 1))
    assert_close(at(at(q, -1), 1), q)


@pytest.mark.parametrize("blocks", [1, 4, 16])
def test_block_mask_for_cuda_names_exactly_the_tiles_that_are_seen(blocks, monkeypatch):
    """Tiles all of whose pairs are visible are full, those with some are partial, the others are absent."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # its import alone takes seconds
    file = Path(attention.__file__).with_name("attention_flex.py")
    spec = importlib.util.spec_from_file_location("attention_flex_uncompiled", file)
    assert spec is not None and spec.loader is not None
    flex = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(flex)
    tile, keys = flex.TILE, 512
    first = torch.arange(0, keys, keys // blocks)[:blocks]
    counts = [5 * tile // blocks - 3, 3 * tile // blocks]  # nodes per block: rows differ, both pad
    ends = [first.repeat_interleave(count) for count in counts]
    length = -(-max(map(len, ends)) // tile) * tile
    end = torch.stack([F.pad(x, (0, length - len(x))) for x in ends])
    mask = flex.prefix_mask(end, keys)
    key = torch.arange(keys)
    seen = key < end[..., None]
    tiles = seen.view(len(seen), length // tile, tile, keys // tile, tile).transpose(2, 3).flatten(-2)
    full, some = tiles.all(-1), tiles.any(-1)
    for b in range(len(seen)):
        for q in range(length // tile):
            listed = mask.full_kv_indices[b, 0, q, : mask.full_kv_num_blocks[b, 0, q]].tolist()
            partial = mask.kv_indices[b, 0, q, : mask.kv_num_blocks[b, 0, q]].tolist()
            assert listed == full[b, q].nonzero().flatten().tolist()
            assert partial == (some & ~full)[b, q].nonzero().flatten().tolist()
            inside = mask.mask_mod(b, 0, torch.arange(q * tile, (q + 1) * tile)[:, None], key)
            assert torch.equal(inside, seen[b, q * tile : (q + 1) * tile])

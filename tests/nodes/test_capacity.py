"""Padded sizes decided before the device begins: enough, few, and padding changes nothing."""

import pytest
import torch
from tests.model.tiny import gradients, random_ids, random_noise, tiny_model

from dadlm.nodes import padded_sizes, select
from dadlm.objective import losses


def test_selection_takes_out_and_puts_back() -> None:
    wanted = torch.tensor([True, False, True, True, False])
    x = torch.arange(10.0).view(5, 2).requires_grad_()
    exact, padded = select(wanted), select(wanted, 5)
    assert exact.take(x).tolist() == [[0, 1], [4, 5], [6, 7]]
    assert padded.take(x).tolist() == [[0, 1], [4, 5], [6, 7], [0, 0], [0, 0]]
    back = padded.put(padded.take(x))
    assert back.tolist() == [[0, 1], [0, 0], [4, 5], [6, 7], [0, 0]]
    (grad,) = torch.autograd.grad((back * torch.arange(5.0)[:, None]).sum(), x)
    assert grad[:, 0].tolist() == [0, 0, 2, 3, 0]
    nothing = select(torch.zeros(4, dtype=torch.bool))
    assert not nothing.put(nothing.take(torch.ones(4))).any()


SHAPES = [{}, {"expand_at": 1}, {"transition": "gated"}, {"architecture": "llama"}, {"family": "bd3lm"}]


@pytest.mark.parametrize("changes", [*SHAPES, {"family": "mdlm"}])
@pytest.mark.parametrize("blocks", [None, torch.tensor([[0, 2], [1, 3], [0, 1], [2, 3]])])
def test_sizes_decided_before_change_neither_losses_nor_gradients(changes: dict, blocks) -> None:
    model = tiny_model(**changes)
    if model.config.family == "mdlm":
        blocks = None  # the whole row is one
    ids, noise = random_ids(model.config), random_noise(model)
    if blocks is not None:
        noise = noise._replace(weight=noise.weight.gather(1, blocks), blocks=blocks)
    block, nodes = model.config.block, model.config.nodes_per_mask
    masked = noise.split_blocks(ids, block)[1].flatten(1)
    sizes = padded_sizes(masked, block, nodes, model.graph is not None)
    exact, padded = (losses(model, ids, noise, sizes=given) for given in (None, sizes))
    for a, b in zip(vars(exact).values(), vars(padded).values(), strict=True):
        torch.testing.assert_close(a, b)
    expected, found = (gradients(model, one.train.sum()) for one in (exact, padded))
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, atol=1e-5, rtol=1e-4, msg=name)


def test_fewer_sizes_where_more_varies() -> None:
    generator = torch.Generator().manual_seed(0)
    masks = [torch.rand(32, 256, generator=generator) < share for share in torch.linspace(0.05, 0.95, 50)]
    sizes = {count: {padded_sizes(m, 16, 4, True, count) for m in masks} for count in (8, 64)}
    assert len(sizes[8]) <= 8 + 3 < len(sizes[64]), "of masked nodes, and where the packed ones change"
    assert all(padded_sizes(m, 16, 4, True, 8).masked >= 4 * int(m.sum()) for m in masks)


@pytest.mark.parametrize(("candidates", "start"), [(1, False), (4, True), (3, True)])
def test_sizes_are_large_enough_and_few(candidates: int, start: bool) -> None:
    seen = set()
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        masked = torch.rand(8, 256, generator=generator) < torch.rand(8, 1, generator=generator)
        sizes = padded_sizes(masked, 16, candidates, start)
        nodes = 256 + (candidates - 1) * masked.sum(1) + (16 if start else 0)
        assert sizes.nodes >= int(nodes.max()) and sizes.masked >= int(masked.sum()) * candidates
        assert sizes.nodes % 128 == 0
        seen.add(sizes)
    assert len(seen) <= 24
    nothing = torch.zeros(8, 256, dtype=torch.bool)
    assert padded_sizes(nothing, 16, candidates, start).masked > 0, "a step without any mask has a shape too"

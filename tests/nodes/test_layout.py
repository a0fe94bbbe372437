"""The layout: every node exactly once, slots and packed storage inverse to each other, expansion by hand. B
rows, G blocks, N block size, K candidates, M slots per block, C packed nodes per row, F features."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

from dadlm.nodes import Nodes, expand, lay_out, layout

B, G, N = 4, 3, 4
NOTHING = (-1, -1)  # group and candidate of a start node


def random_masked() -> Tensor:
    """Random blocks, and a row without masks, a row of masks only, a row with one block of each."""
    masked = torch.rand(B, G, N, generator=torch.Generator().manual_seed(0)) < 0.5
    masked[1], masked[2] = False, True
    masked[3, 0], masked[3, 1] = True, False
    return masked


def first_positions() -> Tensor:
    return torch.tensor([[0, 4, 8], [0, 4, 8], [3, 9, 20], [5, 0, 7]])


@pytest.fixture(params=["exact", "padded"])
def spare(request, monkeypatch) -> int:
    """5 nodes of padding in the fullest row, as the padded sizes of a GPU leave it."""
    extra = 0 if request.param == "exact" else 5
    monkeypatch.setattr(layout, "capacity", lambda count, full, exact: count + extra)
    return extra


shapes = pytest.mark.parametrize(("candidates", "start"), [(3, True), (3, False), (2, True)])


def build(candidates: int, start: bool, packed: bool = True) -> Nodes:
    return lay_out(random_masked(), first_positions(), candidates=candidates, start=start, packed=packed)


def naive_nodes(row: Tensor, candidates: int, start: bool) -> list[tuple[int, int, int, int]]:
    """(block, slot in the row, group in the block, candidate) of every node of a row [G, N] that exists."""
    found, slots = [], int(start) + row.shape[1] * candidates
    for g in range(row.shape[0]):
        if start:
            found.append((g, g * slots, *NOTHING))
        for i in range(row.shape[1]):
            for k in range(candidates if row[g, i] else 1):
                found.append((g, g * slots + int(start) + i * candidates + k, i, k))
    return found


def exists(nodes: Nodes) -> Tensor:
    """[B, G, M]: True where a node is."""
    found = torch.zeros(B, G * nodes.slots, dtype=torch.bool)
    for b, row in enumerate(nodes.masked):
        found[b, [slot for _, slot, _, _ in naive_nodes(row, nodes.candidates, nodes.start)]] = True
    return found.view(B, G, nodes.slots)


@shapes
def test_every_node_is_packed_exactly_once_and_none_is_dropped(candidates, start, spare):
    nodes = build(candidates, start)
    assert nodes.slot_of_node is not None and nodes.node_of_slot is not None
    wanted = [[slot for _, slot, _, _ in naive_nodes(row, candidates, start)] for row in nodes.masked]
    assert nodes.slot_of_node.shape[1] == max(map(len, wanted)) + spare
    for b in range(B):
        packed = nodes.slot_of_node[b].tolist()
        assert packed[: len(wanted[b])] == wanted[b]  # in the order of their blocks
        assert set(packed[len(wanted[b]) :]) <= {-1}
        for slot, node in enumerate(nodes.node_of_slot[b].tolist()):
            assert (node == -1) == (slot not in wanted[b])
            assert node == -1 or packed[node] == slot


@shapes
def test_to_slots_and_from_slots_are_inverse(candidates, start, spare):
    nodes = build(candidates, start)
    here = exists(nodes)
    slots = torch.randn(B, G, nodes.slots, 2, 3)
    packed = nodes.from_slots(slots)
    assert nodes.slot_of_node is not None and packed.shape == (*nodes.slot_of_node.shape, 2, 3)
    assert torch.equal(nodes.to_slots(packed), slots * here[..., None, None])
    real = nodes.slot_of_node >= 0
    assert not packed[~real].any() and packed[real].all()
    assert torch.equal(nodes.from_slots(nodes.to_slots(packed)), packed)


@shapes
def test_slots_themselves_are_the_storage_when_not_packed(candidates, start):
    nodes = build(candidates, start, packed=False)
    slots = torch.randn(B, G, nodes.slots, 2)
    assert torch.equal(nodes.from_slots(slots), slots.flatten(1, 2))
    assert torch.equal(nodes.to_slots(nodes.from_slots(slots)), slots)


@shapes
def test_gradients_of_both_moves(candidates, start, spare):
    nodes = build(candidates, start)
    assert nodes.slot_of_node is not None
    slots = torch.randn(B, G, nodes.slots, 1, dtype=torch.float64, requires_grad=True)
    packed = torch.randn(*nodes.slot_of_node.shape, 1, dtype=torch.float64, requires_grad=True)
    assert gradcheck(nodes.from_slots, slots)
    assert gradcheck(nodes.to_slots, packed)
    nodes.to_slots(packed).sum().backward()  # padding gets exactly nothing
    assert torch.equal(packed.grad.squeeze(-1), (nodes.slot_of_node >= 0).double())


@shapes
@pytest.mark.parametrize("packed", [True, False])
def test_what_is_known_of_each_node(candidates, start, packed, spare):
    """Position, visible prefix, group, candidate index and the need of a head, node by node."""
    nodes = build(candidates, start, packed)
    found = {
        name: nodes.to_slots(getattr(nodes, name)).flatten(1)
        for name in ("position", "visible", "group", "candidate", "is_candidate", "is_start")
    }
    for b, row in enumerate(nodes.masked):
        for g, slot, i, k in naive_nodes(row, candidates, start):
            first, is_start = int(nodes.first[b, g]), (i, k) == NOTHING
            expected = {
                "position": first - 1 if is_start else first + i,
                "visible": first,
                "group": -1 if is_start else g * N + i,
                "candidate": 0 if is_start else k,
                "is_candidate": False if is_start else bool(row[g, i]),
                "is_start": is_start,
            }
            assert {name: int(value[b, slot]) for name, value in found.items()} == expected


@shapes
def test_padding_needs_no_head_and_sees_no_prefix(candidates, start, spare):
    nodes = build(candidates, start)
    assert nodes.slot_of_node is not None
    padding = nodes.slot_of_node < 0
    assert padding.any()
    assert not nodes.is_candidate[padding].any() and not nodes.visible[padding].any()
    assert int(nodes.is_candidate.sum()) == int(nodes.masked.sum()) * candidates


@shapes
@pytest.mark.parametrize("packed", [True, False])
def test_inactive_and_start_nodes_are_never_keys(candidates, start, packed):
    nodes = build(candidates, start, packed)
    assert torch.equal(nodes.groups(exists(nodes)), nodes.active)
    for b, row in enumerate(nodes.masked):
        keys = {slot for _, slot, i, k in naive_nodes(row, candidates, start) if (i, k) != NOTHING}
        assert set(nodes.is_key[b].flatten().nonzero().flatten().tolist()) == keys


@pytest.mark.parametrize("full", [4, 65, 130, 1000, 4160, 66_560])
def test_capacity_is_the_smallest_of_a_few_multiples_of_a_tile(full):
    counts = sorted({1, full // 3, full // 2, full // 2 + 1, int(0.66 * full), int(0.81 * full), full})
    sizes = {count: layout.capacity(count, full, exact=False) for count in counts}
    everything = {layout.capacity(count, full, exact=False) for count in range(0, full + 1, full // 97 + 1)}
    assert len(everything) <= 4
    for count, place in sizes.items():
        assert place >= count and place % 128 == 0
        assert not [smaller for smaller in everything if count <= smaller < place]
        assert place < full + 128
    assert layout.capacity(full // 3, full, exact=True) == full // 3


@pytest.mark.parametrize("candidates", [2, 3])
@pytest.mark.parametrize("packed", [True, False])
def test_expand_is_the_naive_loop(candidates, packed, spare):
    nodes = build(candidates, True, packed)
    inputs = [
        torch.randn(*shape, 5, dtype=torch.float64, requires_grad=True)
        for shape in ((B, G * N), (candidates,), ())
    ]

    def naive(x: Tensor, e: Tensor, start: Tensor) -> Tensor:
        blocks, out = x.view(B, G, -1, 5), torch.zeros(B, G * nodes.slots, 5, dtype=x.dtype)
        for b, row in enumerate(nodes.masked):
            for g, slot, i, k in naive_nodes(row, candidates, True):
                value = start if (i, k) == NOTHING else blocks[b, g, i]
                if (i, k) != NOTHING and row[g, i]:
                    value = value + e[k]
                out[b, slot] = value
        return out

    def fast(x: Tensor, e: Tensor, start: Tensor) -> Tensor:
        return nodes.to_slots(expand(x, e, start, nodes)).flatten(1, 2) * exists(nodes).flatten(1)[..., None]

    assert_close(fast(*inputs), naive(*inputs))
    weight = torch.randn(B, G * nodes.slots, 5, dtype=torch.float64)
    pairs = [torch.autograd.grad((f(*inputs) * weight).sum(), inputs) for f in (fast, naive)]
    for got, expected in zip(*pairs, strict=True):
        assert_close(got, expected)


def test_one_candidate_needs_no_packing():
    nodes = build(1, True)
    assert nodes.slot_of_node is None and nodes.slots == N + 1
    assert nodes.active.all()


@shapes
def test_collapsed_is_the_layout_before_expansion(candidates, start):
    nodes = build(candidates, start).collapsed
    assert nodes.slots == N and nodes.candidates == 1
    plain = lay_out(random_masked(), first_positions(), candidates=1, start=False)
    assert torch.equal(nodes.position, plain.position) and torch.equal(nodes.is_key, plain.is_key)


def test_derived_things_are_made_once_per_layout():
    made = []
    nodes, other = build(3, True), build(3, True)
    for _ in range(3):
        assert nodes.remember("mask", lambda: made.append(1) or "mine") == "mine"
    assert made == [1]
    assert other.remember("mask", lambda: "other") == "other"

"""Attention of nodes over the nodes of their own block, joined with what they saw of the prefix.

A program takes one block and head: its nodes are loaded straight from packed storage, all against all in one
tile, and the prefix enters as one more key whose score is its log normaliser. The start node, which is no
key, asks alone: with it a block of 64 candidates would not fit a tile of 64. Nothing of the size nodes ×
nodes reaches memory, and no node is moved to a slot and back. `attention._inside` and `merge` are the twin.

B rows, C packed nodes, G blocks, M slots per block, H heads, E head width, T tile.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dadlm.nodes import Nodes

_LARGEST = 128  # slots of a block that fit a tile, the start node apart


def fits(nodes: Nodes, q: Tensor) -> bool:
    """Whether a block fits a tile, and its products a multiprocessor's memory."""
    width = q.shape[-1]
    too_large = q.dtype == torch.float32 and width == 128 and nodes.slots - int(nodes.start) > _LARGEST // 2
    return nodes.slots - int(nodes.start) <= _LARGEST and width in (16, 32, 64, 128) and not too_large


def attend_inside(
    q: Tensor, k: Tensor, v: Tensor, nodes: Nodes, prefix: tuple[Tensor, Tensor] | None
) -> Tensor:
    """Node queries, keys, values [B, C, H, E], and the prefix: average [B, C, H, E], normaliser [B, C, H]."""
    before, before_lse = (None, None) if prefix is None else prefix
    return _Inside.apply(q, k, v, before, before_lse, nodes)  # type: ignore[return-value]


class _Inside(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        before: Tensor | None,
        before_lse: Tensor | None,
        nodes: Nodes,
    ) -> Tensor:
        B, C, H, E = q.shape
        out = torch.empty(B, C, H, E, device=q.device, dtype=v.dtype)
        lse = torch.empty(B, C, H, device=q.device, dtype=torch.float32)
        _run(_forward, q, k, v, before, before_lse, nodes, (out, lse))
        ctx.save_for_backward(q, k, v, before, before_lse, out, lse)
        ctx.nodes = nodes
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, before, before_lse, out, lse = ctx.saved_tensors
        to_q, to_k, to_v = (torch.empty(q.shape, device=q.device, dtype=q.dtype) for _ in range(3))
        to_before = to_lse = None
        if before is not None:
            to_before = torch.empty(q.shape, device=q.device, dtype=before.dtype)
            # Of the spare room nothing may be left undefined; what is large is cleared by the kernel.
            to_lse = torch.zeros(lse.shape, device=q.device, dtype=torch.float32)
        spare = (to_q if to_before is None else to_before, lse if to_lse is None else to_lse)
        more = (out, lse, grads[0].contiguous(), to_q, to_k, to_v, *spare)
        _run(_backward, q, k, v, before, before_lse, ctx.nodes, more)
        return to_q, to_k, to_v, to_before, to_lse, None


def _run(
    kernel: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    before: Tensor | None,
    before_lse: Tensor | None,
    nodes: Nodes,
    others: tuple[Tensor, ...],
) -> None:
    """`others` are contiguous [B, C, H(, E)]; of the rest only the last dimension has to be."""
    B, C, H, E = q.shape
    G, M = nodes.first.shape[1], nodes.slots
    has_prefix = before is not None
    if before is None or before_lse is None:
        before, before_lse = q, others[1]
    packed = nodes.node_of_slot is not None
    where = nodes.node_of_slot if nodes.node_of_slot is not None else nodes.first
    tile = max(16, triton.next_power_of_2(M - int(nodes.start)))
    kernel[(B * G, H)](
        *(q, k, v, before, before_lse, where.contiguous(), nodes.is_key.contiguous(), *others),
        *(q.stride(0), q.stride(1), q.stride(2), k.stride(0), k.stride(1), k.stride(2)),
        *(v.stride(0), v.stride(1), v.stride(2), before.stride(0), before.stride(1), before.stride(2)),
        *(before_lse.stride(0), before_lse.stride(1), before_lse.stride(2), G, M, C, H, E**-0.5),
        *(packed, has_prefix, int(nodes.start), E, tile),
        PRECISION="tf32x3" if q.dtype == torch.float32 else "tf32",  # three products: as good as fp32
        num_warps=8 if tile >= 128 else 4,
    )


@triton.jit
def _nodes(where, is_key, pair, slot, there, G, M, PACKED: tl.constexpr):
    """The nodes of some slots of a block, which of them exist, and which are keys."""
    node = (pair % G) * M + slot
    counts = tl.load(is_key + pair * M + slot, mask=there, other=0) != 0
    if PACKED:
        node = tl.load(where + pair * M + slot, mask=there, other=-1).to(tl.int32)
        there = there & (node >= 0)
    return tl.where(there, node, 0), there, counts & there


@triton.jit
def _rows(x, row, node, head, there, x_row, x_node, x_head, E: tl.constexpr):
    x += row * x_row + head * x_head  # places inside a row fit 32 bits, which saves half the registers
    return tl.load(x + node[:, None] * x_node + tl.arange(0, E)[None, :], mask=there[:, None], other=0.0)


@triton.jit
def _is_last(pair, G, PACKED: tl.constexpr):
    """Whether this block is the last of its row, after which packed storage has only spare room."""
    return PACKED and pair % G == G - 1


@triton.jit
def _clear(x, row, node, there, head, C, H, E: tl.constexpr, T: tl.constexpr):
    """Zero the spare room of a row behind its last node: it belongs to no block, but is learned through."""
    used = tl.max(tl.where(there, node, -1), 0) + 1
    x += (row * C * H + head) * E
    for first in range(used, C, T):
        place = first + tl.arange(0, T)
        at = place[:, None] * (H * E) + tl.arange(0, E)[None, :]
        tl.store(x + at, tl.zeros([T, E], x.dtype.element_ty), mask=(place < C)[:, None])


@triton.jit
def _answer(
    q, before, before_lse, out, lse, keys, values, counts, row, head, node, there,
    q_row, q_node, q_head, b_row, b_node, b_head, l_row, l_node, l_head, C, H, scale,
    PREFIX: tl.constexpr, E: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What some queries of a block see."""
    queries = _rows(q, row, node, head, there, q_row, q_node, q_head, E)
    scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale
    scores = tl.where(counts[None, :], scores, -float("inf"))
    top = tl.max(scores, 1)
    if PREFIX:
        seen = tl.load(
            before_lse + row * l_row + head * l_head + node * l_node, mask=there, other=-float("inf")
        )
        top = tl.maximum(top, seen)
    base = tl.where(top == -float("inf"), 0.0, top)
    weight = tl.exp(scores - base[:, None])
    total = tl.sum(weight, 1)
    acc = tl.dot(weight.to(values.dtype), values, input_precision=PRECISION)
    if PREFIX:
        share = tl.exp(seen - base)
        total += share
        average = _rows(before, row, node, head, there, b_row, b_node, b_head, E).to(tl.float32)
        # Where nothing of the prefix was seen its average may be anything.
        acc += tl.where(share[:, None] > 0, share[:, None] * average, 0.0)
    safe = tl.where(total > 0, total, 1.0)
    begin = row * C * H + head
    result = (acc / safe[:, None]).to(out.dtype.element_ty)
    flat = node[:, None] * (H * E) + tl.arange(0, E)[None, :]
    tl.store(out + begin * E + flat, result, mask=there[:, None])
    tl.store(lse + begin + node * H, base + tl.log(safe), mask=there)


@triton.jit
def _forward(
    q, k, v, before, before_lse, where, is_key, out, lse,
    q_row, q_node, q_head, k_row, k_node, k_head, v_row, v_node, v_head, b_row, b_node, b_head,
    l_row, l_node, l_head, G, M, C, H, scale,
    PACKED: tl.constexpr, PREFIX: tl.constexpr, START: tl.constexpr, E: tl.constexpr, T: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    pair, head = tl.program_id(0), tl.program_id(1)
    row = (pair // G).to(tl.int64)
    slot = START + tl.arange(0, T)
    node, there, counts = _nodes(where, is_key, pair, slot, slot < M, G, M, PACKED)
    keys = _rows(k, row, node, head, there, k_row, k_node, k_head, E)
    values = _rows(v, row, node, head, there, v_row, v_node, v_head, E)
    _answer(
        q, before, before_lse, out, lse, keys, values, counts, row, head, node, there,
        q_row, q_node, q_head, b_row, b_node, b_head, l_row, l_node, l_head, C, H, scale,
        PREFIX, E, PRECISION,
    )  # fmt: skip
    if START:
        slot = tl.arange(0, 16)
        first, alone, _ = _nodes(where, is_key, pair, slot, slot == 0, G, M, PACKED)
        _answer(
            q, before, before_lse, out, lse, keys, values, counts, row, head, first, alone,
            q_row, q_node, q_head, b_row, b_node, b_head, l_row, l_node, l_head, C, H, scale,
            PREFIX, E, PRECISION,
        )  # fmt: skip
    if _is_last(pair, G, PACKED):
        _clear(out, row, node, there, head, C, H, E, T)


@triton.jit
def _differentiate(
    q, before, before_lse, out, lse, grad, to_q, to_before, to_lse,
    keys, values, counts, row, head, node, there,
    q_row, q_node, q_head, b_row, b_node, b_head, l_row, l_node, l_head, C, H, scale,
    PREFIX: tl.constexpr, E: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of some queries and of what they saw; those of keys and values come back."""
    begin = row * C * H + head
    flat = node[:, None] * (H * E) + tl.arange(0, E)[None, :]
    queries = _rows(q, row, node, head, there, q_row, q_node, q_head, E)
    arrives = tl.load(grad + begin * E + flat, mask=there[:, None], other=0.0)
    result = tl.load(out + begin * E + flat, mask=there[:, None], other=0.0).to(tl.float32)
    normaliser = tl.load(lse + begin + node * H, mask=there, other=0.0)
    delta = tl.sum(arrives.to(tl.float32) * result, 1)
    if PREFIX:
        seen = tl.load(
            before_lse + row * l_row + head * l_head + node * l_node, mask=there, other=-float("inf")
        )
        average = _rows(before, row, node, head, there, b_row, b_node, b_head, E).to(tl.float32)
        share = tl.exp(seen - normaliser)
        change = share[:, None] * arrives.to(tl.float32)
        tl.store(to_before + begin * E + flat, change.to(to_before.dtype.element_ty), mask=there[:, None])
        along = tl.sum(tl.where(share[:, None] > 0, arrives.to(tl.float32) * average, 0.0), 1)
        tl.store(to_lse + begin + node * H, share * (along - delta), mask=there)
    scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale
    weight = tl.where(counts[None, :] & there[:, None], tl.exp(scores - normaliser[:, None]), 0.0)
    to_weight = tl.dot(arrives, tl.trans(values), input_precision=PRECISION)
    to_scores = (weight * (to_weight - delta[:, None]) * scale).to(queries.dtype)
    change_q = tl.dot(to_scores, keys, input_precision=PRECISION)
    tl.store(to_q + begin * E + flat, change_q.to(to_q.dtype.element_ty), mask=there[:, None])
    change_k = tl.dot(tl.trans(to_scores), queries, input_precision=PRECISION)
    change_v = tl.dot(tl.trans(weight.to(arrives.dtype)), arrives, input_precision=PRECISION)
    return change_k, change_v


@triton.jit
def _backward(
    q, k, v, before, before_lse, where, is_key, out, lse, grad, to_q, to_k, to_v, to_before, to_lse,
    q_row, q_node, q_head, k_row, k_node, k_head, v_row, v_node, v_head, b_row, b_node, b_head,
    l_row, l_node, l_head, G, M, C, H, scale,
    PACKED: tl.constexpr, PREFIX: tl.constexpr, START: tl.constexpr, E: tl.constexpr, T: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    pair, head = tl.program_id(0), tl.program_id(1)
    row = (pair // G).to(tl.int64)
    slot = START + tl.arange(0, T)
    node, there, counts = _nodes(where, is_key, pair, slot, slot < M, G, M, PACKED)
    keys = _rows(k, row, node, head, there, k_row, k_node, k_head, E)
    values = _rows(v, row, node, head, there, v_row, v_node, v_head, E)
    change_k, change_v = _differentiate(
        q, before, before_lse, out, lse, grad, to_q, to_before, to_lse,
        keys, values, counts, row, head, node, there,
        q_row, q_node, q_head, b_row, b_node, b_head, l_row, l_node, l_head, C, H, scale,
        PREFIX, E, PRECISION,
    )  # fmt: skip
    begin, width = (row * C * H + head) * E, tl.arange(0, E)[None, :]
    kind = to_k.dtype.element_ty
    if START:
        slot = tl.arange(0, 16)
        first, alone, _ = _nodes(where, is_key, pair, slot, slot == 0, G, M, PACKED)
        more_k, more_v = _differentiate(
            q, before, before_lse, out, lse, grad, to_q, to_before, to_lse,
            keys, values, counts, row, head, first, alone,
            q_row, q_node, q_head, b_row, b_node, b_head, l_row, l_node, l_head, C, H, scale,
            PREFIX, E, PRECISION,
        )  # fmt: skip
        change_k += more_k
        change_v += more_v
        at = begin + first[:, None] * (H * E) + width
        nothing = tl.zeros([16, E], kind)  # no node attends to the start
        tl.store(to_k + at, nothing, mask=alone[:, None])
        tl.store(to_v + at, nothing, mask=alone[:, None])
    flat = begin + node[:, None] * (H * E) + width
    tl.store(to_k + flat, change_k.to(kind), mask=there[:, None])
    tl.store(to_v + flat, change_v.to(kind), mask=there[:, None])
    if _is_last(pair, G, PACKED):
        _clear(to_q, row, node, there, head, C, H, E, T)
        _clear(to_k, row, node, there, head, C, H, E, T)
        _clear(to_v, row, node, there, head, C, H, E, T)
        if PREFIX:
            _clear(to_before, row, node, there, head, C, H, E, T)

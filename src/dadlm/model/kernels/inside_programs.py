"""The Triton programs of `inside`: one block and head each, forward and backward. SHARED heads have the same
keys and values, whose gradient comes back once for each of them.

C packed nodes, G blocks, M slots per block, H heads, E head width, T tile.
"""

import triton
import triton.language as tl


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
def rows(x, row, node, head, there, x_row, x_node, x_head, E: tl.constexpr):
    x += row * x_row + head * x_head  # places inside a row fit 32 bits, which saves half the registers
    return tl.load(x + node[:, None] * x_node + tl.arange(0, E)[None, :], mask=there[:, None], other=0.0)


@triton.jit
def _clear(x, row, node, there, head, C, H, E: tl.constexpr, T: tl.constexpr):
    """Zero the padding of a row behind its last node: it belongs to no block, but is learned through."""
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
    queries = rows(q, row, node, head, there, q_row, q_node, q_head, E)
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
        average = rows(before, row, node, head, there, b_row, b_node, b_head, E).to(tl.float32)
        # Where nothing of the prefix was seen its average may be anything.
        acc += tl.where(share[:, None] > 0, share[:, None] * average, 0.0)
    safe = tl.where(total > 0, total, 1.0)
    begin = row * C * H + head
    result = (acc / safe[:, None]).to(out.dtype.element_ty)
    flat = node[:, None] * (H * E) + tl.arange(0, E)[None, :]
    tl.store(out + begin * E + flat, result, mask=there[:, None])
    tl.store(lse + begin + node * H, base + tl.log(safe), mask=there)


@triton.jit
def forward(
    q, k, v, before, before_lse, where, is_key, out, lse,
    q_row, q_node, q_head, k_row, k_node, k_head, v_row, v_node, v_head, b_row, b_node, b_head,
    l_row, l_node, l_head, G, M, C, H, scale,
    PACKED: tl.constexpr, PREFIX: tl.constexpr, START: tl.constexpr, SHARED: tl.constexpr, E: tl.constexpr,
    T: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    pair, head = tl.program_id(0), tl.program_id(1)
    row = (pair // G).to(tl.int64)
    slot = START + tl.arange(0, T)
    node, there, counts = _nodes(where, is_key, pair, slot, slot < M, G, M, PACKED)
    keys = rows(k, row, node, head // SHARED, there, k_row, k_node, k_head, E)
    values = rows(v, row, node, head // SHARED, there, v_row, v_node, v_head, E)
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
    if PACKED and pair % G == G - 1:  # after the last block of a row there is only padding
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
    queries = rows(q, row, node, head, there, q_row, q_node, q_head, E)
    arrives = tl.load(grad + begin * E + flat, mask=there[:, None], other=0.0)
    result = tl.load(out + begin * E + flat, mask=there[:, None], other=0.0).to(tl.float32)
    normaliser = tl.load(lse + begin + node * H, mask=there, other=0.0)
    delta = tl.sum(arrives.to(tl.float32) * result, 1)
    if PREFIX:
        seen = tl.load(
            before_lse + row * l_row + head * l_head + node * l_node, mask=there, other=-float("inf")
        )
        average = rows(before, row, node, head, there, b_row, b_node, b_head, E).to(tl.float32)
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
def backward(
    q, k, v, before, before_lse, where, is_key, out, lse, grad, to_q, to_k, to_v, to_before, to_lse,
    q_row, q_node, q_head, k_row, k_node, k_head, v_row, v_node, v_head, b_row, b_node, b_head,
    l_row, l_node, l_head, G, M, C, H, scale,
    PACKED: tl.constexpr, PREFIX: tl.constexpr, START: tl.constexpr, SHARED: tl.constexpr, E: tl.constexpr,
    T: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    pair, head = tl.program_id(0), tl.program_id(1)
    row = (pair // G).to(tl.int64)
    slot = START + tl.arange(0, T)
    node, there, counts = _nodes(where, is_key, pair, slot, slot < M, G, M, PACKED)
    keys = rows(k, row, node, head // SHARED, there, k_row, k_node, k_head, E)
    values = rows(v, row, node, head // SHARED, there, v_row, v_node, v_head, E)
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
    if PACKED and pair % G == G - 1:  # after the last block of a row there is only padding
        _clear(to_q, row, node, there, head, C, H, E, T)
        _clear(to_k, row, node, there, head, C, H, E, T)
        _clear(to_v, row, node, there, head, C, H, E, T)
        if PREFIX:
            _clear(to_before, row, node, there, head, C, H, E, T)

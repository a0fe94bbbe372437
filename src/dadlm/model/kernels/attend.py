"""Attention over a prefix of which each query sees its own number of positions, and over the query's block.
The prefix lengths are read on the device, so one captured graph serves texts of any length.

B rows, C queries, L prefix positions, H heads of queries, H' of keys and values, E head width.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_FEW = 256  # programs that a large GPU runs at once anyway


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Tensor,
    own: tuple[Tensor, Tensor, Tensor | None] | None = None,
    normaliser: bool = False,
    turn: tuple[Tensor, Tensor] | None = None,
    place: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """q [B, C, H, E] over the first visible [B, C] positions of k, v [B, L, H', E]; out and log normaliser.
    `own` = (k, v, is_key) adds the keys of the row's block: [B, C, H', E] and which of them count [B, C]
    (None: all).

    With `turn` = (cos, sin) [B, C, 1, E / 2], q and the block's keys come as they are before their rotary
    turn. With `place` [B, C] the block's keys and values are written there into k and v, behind what is
    visible.
    """
    B, C, H, E = q.shape
    out = torch.empty(B, C, H, E, device=q.device, dtype=v.dtype)
    lse = torch.empty(B, C, H, device=q.device, dtype=torch.float32) if normaliser else None
    own_k, own_v, counts = (q, q, None) if own is None else own
    is_key = visible if counts is None else counts
    cos, sin = (q, q) if turn is None else (x.contiguous() for x in turn)
    where = visible if place is None else place
    # Few rows cannot fill the device: small tiles then share the wait instead of queueing for it. Products in
    # single precision keep their operands in registers, and those of larger tiles spill, 9 kB of each thread.
    small = B * H * triton.cdiv(C, 16) <= _FEW or q.dtype == torch.float32
    tile = 16 if small else max(16, min(64, triton.next_power_of_2(C)))
    _attend[(B, H, triton.cdiv(C, tile))](
        *(q, k, v, visible, own_k, own_v, is_key, cos, sin, where, out, out if lse is None else lse),
        *(q.stride(0), q.stride(1), q.stride(2), k.stride(0), k.stride(1), k.stride(2)),
        *(v.stride(0), v.stride(1), v.stride(2), own_k.stride(0), own_k.stride(1), own_k.stride(2)),
        *(own_v.stride(0), own_v.stride(1), own_v.stride(2), *visible.stride(), *is_key.stride()),
        *(*where.stride(), C, H, E**-0.5),
        *(own is not None, counts is None, normaliser, turn is not None, place is not None),
        H // k.shape[2],
        *(E, tile, 64),
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=4,
        num_stages=3,
    )
    return out, lse


@triton.jit
def _turned(x, begin, there, cos, sin, at, E: tl.constexpr):
    """Rows of x that begin at `begin`, rotated by their rows `at` of cos and sin. The other half of each is
    loaded once more instead of being moved."""
    width = tl.arange(0, E)[None, :]
    half, real = E // 2, there[:, None]
    own = tl.load(x + begin[:, None] + width, mask=real, other=0.0).to(tl.float32)
    other = tl.load(x + begin[:, None] + (width + half) % E, mask=real, other=0.0).to(tl.float32)
    c = tl.load(cos + at[:, None] * half + width % half, mask=real, other=0.0)
    s = tl.load(sin + at[:, None] * half + width % half, mask=real, other=0.0)
    return (own * c + other * tl.where(width < half, -s, s)).to(x.dtype.element_ty)


@triton.jit
def _take_in(q, k, v, allowed, top, total, acc, scale, PRECISION: tl.constexpr):
    """Add a tile of keys and values to the running softmax."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    scores = tl.where(allowed, scores, -float("inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(new_top == -float("inf"), 0.0, new_top)  # nothing seen so far
    weight = tl.exp(scores - base[:, None])
    shrink = tl.exp(top - base)
    total = total * shrink + tl.sum(weight, 1)
    acc = acc * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=PRECISION)
    return new_top, total, acc


@triton.jit
def _attend(
    q, k, v, visible, own_k, own_v, is_key, cos, sin, where, out, lse,
    q_row, q_node, q_head, k_row, k_node, k_head, v_row, v_node, v_head,
    ok_row, ok_node, ok_head, ov_row, ov_node, ov_head, visible_row, visible_node, is_key_row, is_key_node,
    where_row, where_node, C, H, scale,
    OWN: tl.constexpr, ALL: tl.constexpr, LSE: tl.constexpr, TURN: tl.constexpr, WRITE: tl.constexpr,
    SHARED: tl.constexpr, E: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group = head // SHARED  # of queries with the same keys
    node = tl.program_id(2) * QUERIES + tl.arange(0, QUERIES)
    real = node < C
    width = tl.arange(0, E)
    query_at = row * q_row + node * q_node + head * q_head
    if TURN:
        queries = _turned(q, query_at, real, cos, sin, row * C + node, E)
    else:
        queries = tl.load(q + query_at[:, None] + width[None, :], mask=real[:, None], other=0.0)
    sees = tl.load(visible + row * visible_row + node * visible_node, mask=real, other=0)
    top = tl.full([QUERIES], -float("inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    acc = tl.zeros([QUERIES, E], tl.float32)
    limit = tl.max(sees, 0)
    for first in range(0, limit, KEYS):
        key = first + tl.arange(0, KEYS)
        there = (key < limit)[:, None]
        key_tile = tl.load(
            k + row * k_row + key[:, None] * k_node + group * k_head + width[None, :], mask=there, other=0.0
        )
        value_tile = tl.load(
            v + row * v_row + key[:, None] * v_node + group * v_head + width[None, :], mask=there, other=0.0
        )
        allowed = key[None, :] < sees[:, None]
        top, total, acc = _take_in(queries, key_tile, value_tile, allowed, top, total, acc, scale, PRECISION)
    if OWN:
        # Loads of several turns at once would need too much shared memory beside those of cos and sin.
        for first in tl.range(0, C, KEYS, num_stages=1 if TURN else 3):
            key = first + tl.arange(0, KEYS)
            is_own = key < C
            counts = is_own
            if not ALL:
                counts = tl.load(is_key + row * is_key_row + key * is_key_node, mask=is_own, other=0) != 0
            key_at = row * ok_row + key * ok_node + group * ok_head
            if TURN:
                key_tile = _turned(own_k, key_at, is_own, cos, sin, row * C + key, E)
            else:
                key_tile = tl.load(own_k + key_at[:, None] + width[None, :], mask=is_own[:, None], other=0.0)
            value_at = row * ov_row + key * ov_node + group * ov_head
            value_tile = tl.load(own_v + value_at[:, None] + width[None, :], mask=is_own[:, None], other=0.0)
            if WRITE:
                to = tl.load(where + row * where_row + key * where_node, mask=is_own, other=0)
                writes = (tl.program_id(2) == 0) & (head % SHARED == 0)  # one program of those that have it
                mine = (key < tl.where(writes, C, 0))[:, None]
                k_at = row * k_row + to * k_node + group * k_head
                tl.store(k + k_at[:, None] + width[None, :], key_tile.to(k.dtype.element_ty), mask=mine)
                v_at = row * v_row + to * v_node + group * v_head
                tl.store(v + v_at[:, None] + width[None, :], value_tile.to(v.dtype.element_ty), mask=mine)
            allowed = counts[None, :] & real[:, None]
            top, total, acc = _take_in(
                queries, key_tile, value_tile, allowed, top, total, acc, scale, PRECISION
            )
    some = total > 0
    safe = tl.where(some, total, 1.0)
    out_at = (row * C + node) * H + head
    result = (acc / safe[:, None]).to(out.dtype.element_ty)
    tl.store(out + out_at[:, None] * E + width[None, :], result, mask=real[:, None])
    if LSE:
        tl.store(lse + out_at, tl.where(some, top + tl.log(safe), -float("inf")), mask=real)

"""Attention over a prefix of which each query sees its own number of positions, and over the query's block.
The prefix lengths are read on the device, so one captured graph serves texts of any length.

B rows, C queries, L prefix positions, H heads, E head width.
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
    own: tuple[Tensor, Tensor, Tensor] | None = None,
    normaliser: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """q [B, C, H, E] over the first visible [B, C] positions of k, v [B, L, H, E]; out and log normaliser.
    `own` = (k, v, is_key) adds the keys of the row's block: [B, C, H, E] and which of them count [B, C]."""
    B, C, H, E = q.shape
    out = torch.empty(B, C, H, E, device=q.device, dtype=v.dtype)
    lse = torch.empty(B, C, H, device=q.device, dtype=torch.float32) if normaliser else None
    own_k, own_v, is_key = (q, q, visible) if own is None else own
    # Few rows cannot fill the device: small tiles then share the wait instead of queueing for it. Products in
    # single precision keep their operands in registers, and those of larger tiles spill, 9 kB of each thread.
    small = B * H * triton.cdiv(C, 16) <= _FEW or q.dtype == torch.float32
    tile = 16 if small else max(16, min(64, triton.next_power_of_2(C)))
    _attend[(B, H, triton.cdiv(C, tile))](
        *(q, k, v, visible, own_k, own_v, is_key, out, out if lse is None else lse),
        *(q.stride(0), q.stride(1), q.stride(2), k.stride(0), k.stride(1), k.stride(2)),
        *(v.stride(0), v.stride(1), v.stride(2), own_k.stride(0), own_k.stride(1), own_k.stride(2)),
        *(own_v.stride(0), own_v.stride(1), own_v.stride(2), *visible.stride(), *is_key.stride(), C, H),
        *(E**-0.5, own is not None, normaliser, E, tile, 64),
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=4,
        num_stages=3,
    )
    return out, lse


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
    q, k, v, visible, own_k, own_v, is_key, out, lse,
    q_row, q_node, q_head, k_row, k_node, k_head, v_row, v_node, v_head,
    ok_row, ok_node, ok_head, ov_row, ov_node, ov_head, visible_row, visible_node, is_key_row, is_key_node,
    C, H, scale,
    OWN: tl.constexpr, LSE: tl.constexpr, E: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    node = tl.program_id(2) * QUERIES + tl.arange(0, QUERIES)
    real = node < C
    width = tl.arange(0, E)
    queries = tl.load(
        q + row * q_row + node[:, None] * q_node + head * q_head + width[None, :],
        mask=real[:, None],
        other=0.0,
    )
    sees = tl.load(visible + row * visible_row + node * visible_node, mask=real, other=0)
    top = tl.full([QUERIES], -float("inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    acc = tl.zeros([QUERIES, E], tl.float32)
    limit = tl.max(sees, 0)
    for first in range(0, limit, KEYS):
        key = first + tl.arange(0, KEYS)
        there = (key < limit)[:, None]
        key_tile = tl.load(
            k + row * k_row + key[:, None] * k_node + head * k_head + width[None, :], mask=there, other=0.0
        )
        value_tile = tl.load(
            v + row * v_row + key[:, None] * v_node + head * v_head + width[None, :], mask=there, other=0.0
        )
        allowed = key[None, :] < sees[:, None]
        top, total, acc = _take_in(queries, key_tile, value_tile, allowed, top, total, acc, scale, PRECISION)
    if OWN:
        for first in range(0, C, KEYS):
            key = first + tl.arange(0, KEYS)
            there = (key < C)[:, None]
            counts = tl.load(is_key + row * is_key_row + key * is_key_node, mask=key < C, other=0) != 0
            key_tile = tl.load(
                own_k + row * ok_row + key[:, None] * ok_node + head * ok_head + width[None, :],
                mask=there,
                other=0.0,
            )
            value_tile = tl.load(
                own_v + row * ov_row + key[:, None] * ov_node + head * ov_head + width[None, :],
                mask=there,
                other=0.0,
            )
            allowed = counts[None, :] & real[:, None]
            top, total, acc = _take_in(
                queries, key_tile, value_tile, allowed, top, total, acc, scale, PRECISION
            )
    some = total > 0
    safe = tl.where(some, total, 1.0)
    place = (row * C + node) * H + head
    result = (acc / safe[:, None]).to(out.dtype.element_ty)
    tl.store(out + place[:, None] * E + width[None, :], result, mask=real[:, None])
    if LSE:
        tl.store(lse + place, tl.where(some, top + tl.log(safe), -float("inf")), mask=real)

"""Scores of the links between adjacent groups: q·k of every node with every node of the group before. A
program takes one block and head, straight from packed storage: as K × K products both sides would be copied
to slots in fp32.

B rows, C packed nodes, G blocks, M slots, N block size, K candidates, H heads, E head width.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dadlm.nodes import Nodes

_LARGEST = 32768  # elements of a tile: positions × features


def fits(nodes: Nodes, width: int) -> bool:
    return triton.next_power_of_2(nodes.masked.shape[2]) * triton.next_power_of_2(width) <= _LARGEST


def scores(q: Tensor, k: Tensor, nodes: Nodes, heads: int) -> Tensor:
    """Packed q and k [B, C, H·E] → fp32 [B, G, N, H, K, K]: q·k / sqrt(E), from group i-1 to group i."""
    return _Scores.apply(q, k, nodes, heads)  # type: ignore[return-value]


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, nodes: Nodes, heads: int) -> Tensor:
        (B, G, N), K = nodes.masked.shape, nodes.candidates
        q, k = q.contiguous(), k.contiguous()
        out = torch.empty(B, G, N, heads, K, K, device=q.device, dtype=torch.float32)
        _run(_forward, (q, k, out), nodes, heads)
        ctx.save_for_backward(q, k)
        ctx.nodes, ctx.heads = nodes, heads
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k = ctx.saved_tensors
        # Not every node is a source and a target: the last group leads nowhere, nothing leads to the start.
        to_q, to_k = torch.zeros_like(q), torch.zeros_like(k)
        _run(_backward, (q, k, grads[0].contiguous(), to_q, to_k), ctx.nodes, ctx.heads)
        return to_q, to_k, None, None


def _run(kernel: Any, tensors: tuple[Tensor, ...], nodes: Nodes, heads: int) -> None:
    (B, G, N), K = nodes.masked.shape, nodes.candidates
    C, D = tensors[0].shape[1:]
    E, packed = D // heads, nodes.node_of_slot is not None
    where = nodes.node_of_slot if nodes.node_of_slot is not None else nodes.first
    tile = triton.next_power_of_2(N) * triton.next_power_of_2(E)
    kernel[(B * G, heads)](
        *(*tensors, where.contiguous(), G, N, C, heads, E, E**-0.5),
        *(packed, K, triton.next_power_of_2(N), triton.next_power_of_2(E)),
        num_warps=max(1, min(8, tile // 512)),
    )


@triton.jit
def _places(where, pair, group, j, there, G, N, H, E, PACKED: tl.constexpr, K: tl.constexpr):
    """Where node j of some groups begins in packed storage, and which of them exist; group -1: the start."""
    M = 1 + N * K
    slot = tl.where(group < 0, 0, 1 + group * K + j)
    node = (pair % G) * M + slot
    if PACKED:
        node = tl.load(where + pair * M + slot, mask=there, other=-1).to(tl.int32)
        there = there & (node >= 0)
    return node * (H * E), there


@triton.jit
def _forward(
    q, k, out, where, G, N, C, H, E, scale,
    PACKED: tl.constexpr, K: tl.constexpr, NP: tl.constexpr, EP: tl.constexpr,
):  # fmt: skip
    pair, head = tl.program_id(0), tl.program_id(1)
    begin = ((pair // G).to(tl.int64) * C * H + head) * E
    q, k = q + begin, k + begin
    group, width = tl.arange(0, NP), tl.arange(0, EP)[None, :]
    here, wide = group < N, width < E
    for j in tl.static_range(K):
        at, there = _places(where, pair, group - 1, j, here, G, N, H, E, PACKED, K)
        source = tl.load(q + at[:, None] + width, mask=there[:, None] & wide, other=0.0).to(tl.float32)
        for i in tl.static_range(K):
            to, exists = _places(where, pair, group, i, here, G, N, H, E, PACKED, K)
            target = tl.load(k + to[:, None] + width, mask=exists[:, None] & wide, other=0.0).to(tl.float32)
            place = (((pair.to(tl.int64) * N + group) * H + head) * K + j) * K + i
            tl.store(out + place, tl.sum(source * target, 1) * scale, mask=here)


@triton.jit
def _backward(
    q, k, grad, to_q, to_k, where, G, N, C, H, E, scale,
    PACKED: tl.constexpr, K: tl.constexpr, NP: tl.constexpr, EP: tl.constexpr,
):  # fmt: skip
    pair, head = tl.program_id(0), tl.program_id(1)
    begin = ((pair // G).to(tl.int64) * C * H + head) * E
    q, k, to_q, to_k = q + begin, k + begin, to_q + begin, to_k + begin
    group, width = tl.arange(0, NP), tl.arange(0, EP)[None, :]
    here, wide = group < N, width < E
    first = (((pair.to(tl.int64) * N + group) * H + head) * K) * K
    from_start = tl.zeros([EP], tl.float32)
    for j in tl.static_range(K):
        change = tl.zeros([NP, EP], tl.float32)
        for i in tl.static_range(K):
            to, exists = _places(where, pair, group, i, here, G, N, H, E, PACKED, K)
            target = tl.load(k + to[:, None] + width, mask=exists[:, None] & wide, other=0.0).to(tl.float32)
            change += tl.load(grad + first + j * K + i, mask=here, other=0.0)[:, None] * target * scale
        at, there = _places(where, pair, group - 1, j, here, G, N, H, E, PACKED, K)
        known = (there & (group > 0))[:, None] & wide
        tl.store(to_q + at[:, None] + width, change.to(to_q.dtype.element_ty), mask=known)
        # The start node is the source of group 0 whatever j is.
        from_start += tl.sum(tl.where((group == 0)[:, None], change, 0.0), 0)
    at, there = _places(where, pair, group - 1, 0, here, G, N, H, E, PACKED, K)
    at = tl.sum(tl.where(group == 0, at, 0), 0)
    tl.store(to_q + at + tl.arange(0, EP), from_start.to(to_q.dtype.element_ty), mask=tl.arange(0, EP) < E)
    for i in tl.static_range(K):
        change = tl.zeros([NP, EP], tl.float32)
        for j in tl.static_range(K):
            at, there = _places(where, pair, group - 1, j, here, G, N, H, E, PACKED, K)
            source = tl.load(q + at[:, None] + width, mask=there[:, None] & wide, other=0.0).to(tl.float32)
            change += tl.load(grad + first + j * K + i, mask=here, other=0.0)[:, None] * source * scale
        to, exists = _places(where, pair, group, i, here, G, N, H, E, PACKED, K)
        tl.store(to_k + to[:, None] + width, change.to(to_k.dtype.element_ty), mask=exists[:, None] & wide)

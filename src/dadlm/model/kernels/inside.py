"""Attention of nodes over the nodes of their own block, joined with what they saw of the prefix.

A program takes one block and head: its nodes are loaded straight from packed storage, all against all in one
tile, and the prefix enters as one more key whose score is its log normaliser. The start node, which is no
key, asks alone: with it a block of 64 candidates would not fit a tile of 64.

B rows, C packed nodes, G blocks, M slots per block, H heads, H' of keys and values, E head width, T tile.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from dadlm.model.kernels.inside_programs import backward, forward
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
    """Node queries [B, C, H, E], keys and values [B, C, H', E], and what they saw of the prefix: its average
    [B, C, H, E] and normaliser [B, C, H]."""
    return _Inside.apply(nodes, q, k, v, *(prefix or (None, None)))  # type: ignore[return-value]


class _Inside(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, nodes: Nodes, *inputs: Any) -> Tensor:
        q, _, v, _, _ = inputs
        out = torch.empty(q.shape, device=q.device, dtype=v.dtype)
        lse = torch.empty(q.shape[:3], device=q.device, dtype=torch.float32)
        _run(forward, nodes, inputs, (out, lse))
        ctx.save_for_backward(*inputs, out, lse)
        ctx.nodes = nodes
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, out, lse = ctx.saved_tensors
        q, k, _, before, _ = inputs
        to_q, to_k, to_v = (torch.empty(q.shape, device=q.device, dtype=q.dtype) for _ in range(3))
        to_before = to_lse = None
        if before is not None:
            to_before = torch.empty(q.shape, device=q.device, dtype=before.dtype)
            # Nothing of the padding may be left undefined; what is large is cleared by the kernel.
            to_lse = torch.zeros(lse.shape, device=q.device, dtype=torch.float32)
        spare = (to_q if to_before is None else to_before, lse if to_lse is None else to_lse)
        more = (out, lse, grads[0].contiguous(), to_q, to_k, to_v, *spare)
        _run(backward, ctx.nodes, inputs, more)
        if k.shape[2] < q.shape[2]:
            to_k, to_v = (x.unflatten(2, (k.shape[2], -1)).sum(3) for x in (to_k, to_v))
        return None, to_q, to_k, to_v, to_before, to_lse


def _run(kernel: Any, nodes: Nodes, inputs: Sequence[Any], others: tuple[Tensor, ...]) -> None:
    """`others` are contiguous [B, C, H(, E)]; of the inputs only the last dimension has to be."""
    q, k, v, before, before_lse = inputs
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
        *(packed, has_prefix, int(nodes.start), H // k.shape[2], E, tile),
        PRECISION="tf32x3" if q.dtype == torch.float32 else "tf32",  # three products: as good as fp32
        num_warps=8 if tile >= 128 else 4,
    )

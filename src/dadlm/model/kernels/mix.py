"""Several heads of links mixed by a gate: what is left of the transitions behind their scores, in one launch.
A program takes one position of a block that is not packed. `transition.GatedTransition` is the torch twin.

B rows, G blocks, M slots, N block size, K candidates, H heads.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dadlm.nodes import Nodes

_LARGEST = 32768  # elements of a tile: heads × pairs of nodes


def fits(nodes: Nodes, heads: int) -> bool:
    K = triton.next_power_of_2(nodes.candidates)
    return nodes.start and nodes.node_of_slot is None and triton.next_power_of_2(heads) * K * K <= _LARGEST


def mix(scores: Tensor, gate: Tensor, bias: Tensor | None, nodes: Nodes) -> Tensor:
    """Log-probabilities [B, G, N, K, K] of scores [B, G, N, H, K, K] in fp32, logits gate [B, G·M, H] of the
    heads at each source, and what each head adds to staying on a track, bias [H]."""
    B, G, N, H, K, _ = scores.shape
    out = torch.empty(B, G, N, K, K, device=scores.device, dtype=torch.float32)
    sizes = (max(2, triton.next_power_of_2(H)), max(2, triton.next_power_of_2(K)))
    _mix[(B * G * N,)](
        scores.contiguous(), gate.contiguous(), scores if bias is None else bias, nodes.masked.contiguous(),
        out, nodes.slots, N, H, K, bias is not None, *sizes,
        num_warps=max(1, min(8, sizes[0] * sizes[1] ** 2 // 512)),
    )  # fmt: skip
    return out


@triton.jit
def _mix(scores, gate, bias, masked, out, M, N, H, K, BIAS: tl.constexpr, HP: tl.constexpr, KP: tl.constexpr):
    place = tl.program_id(0).to(tl.int64)
    pair, i = place // N, place % N
    h = tl.arange(0, HP)[:, None, None]
    j, k = tl.arange(0, KP)[None, :, None], tl.arange(0, KP)[None, None, :]
    open_here = tl.load(masked + place).to(tl.int32)
    is_real = (h < H) & (j < K) & (k < K)
    logits = tl.load(scores + ((place * H + h) * K + j) * K + k, mask=is_real, other=-float("inf"))
    if BIAS:  # between candidates of the same index, where both positions are masked
        open_before = tl.load(masked + place - 1, mask=i > 0, other=0).to(tl.int32)
        extra = tl.load(bias + h, mask=h < H, other=0.0).to(tl.float32)
        logits += tl.where((j == k) & (open_here * open_before > 0), extra, 0.0)
    active = (open_here > 0) | (k == 0)
    logits = tl.where(active, logits, -float("inf"))
    top = tl.max(logits, 2, keep_dims=True)
    logits -= tl.where(top == -float("inf"), 0.0, top)
    total = tl.sum(tl.exp(logits), 2, keep_dims=True)
    logits -= tl.log(tl.where(total == 0.0, 1.0, total))
    source = tl.where(i == 0, 0, 1 + (i - 1) * K + j)  # the start node leads to the first position
    share = tl.load(gate + (pair * M + source) * H + h, mask=(h < H) & (j < K), other=-float("inf"))
    share = share.to(tl.float32)
    highest = tl.max(share, 0, keep_dims=True)
    share -= tl.where(highest == -float("inf"), 0.0, highest)
    mass = tl.sum(tl.exp(share), 0, keep_dims=True)
    share -= tl.log(tl.where(mass == 0.0, 1.0, mass))
    mixed = tl.where(is_real & active, logits + share, -float("inf"))
    top = tl.max(mixed, 0)
    base = tl.where(top == -float("inf"), 0.0, top)
    mixed = base + tl.log(tl.sum(tl.exp(mixed - base[None, :, :]), 0))
    to = tl.arange(0, KP)
    here = out + (place * K + to[:, None]) * K + to[None, :]
    tl.store(here, mixed, mask=(to < K)[:, None] & (to < K)[None, :])

"""`moves.take` on CUDA, where torch's own takes two passes. B rows, P places to take from, Q to fill, F
features."""

import torch
import triton
import triton.language as tl
from torch import Tensor


def take(x: Tensor, index: Tensor) -> Tensor:
    """x [B, P, F...], index [B, Q] → [B, Q, F...]."""
    B, P = x.shape[:2]
    Q, shape = index.shape[1], x.shape[2:]
    flat = x.reshape(B, P, -1).contiguous()
    F = flat.shape[2]
    out = torch.empty(B, Q, F, device=x.device, dtype=x.dtype)
    size = min(1024, triton.next_power_of_2(F))
    rows = max(1, 1024 // size)
    grid = (triton.cdiv(B * Q, rows), triton.cdiv(F, size))
    _take[grid](flat, index.contiguous(), out, B * Q, P, Q, F, rows, size)
    return out.view(B, Q, *shape)


@triton.jit
def _take(x, index, out, total, P, Q, F, ROWS: tl.constexpr, SIZE: tl.constexpr):
    place = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    feature = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    real = place < total
    source = tl.load(index + place, mask=real, other=-1)
    there = (source >= 0)[:, None] & (feature < F)[None, :]
    at = (place // Q * P + source)[:, None] * F + feature[None, :]
    zero = tl.zeros([ROWS, SIZE], x.dtype.element_ty)
    value = tl.load(x + at, mask=there, other=zero)
    tl.store(out + place[:, None] * F + feature[None, :], value, mask=real[:, None] & (feature < F)[None, :])

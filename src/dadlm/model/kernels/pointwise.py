"""Norm with modulation, rotary turns and gated sums, one launch each: the steps between matrix products.

R rows of the residual stream (all leading dimensions), D width, H heads, E head width.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def norm_modulate(
    x: Tensor, weight: Tensor, shift: Tensor | None, scale: Tensor | None, centred: bool, eps: float
) -> Tensor:
    """LayerNorm (centred) or RMSNorm of x [..., D] in fp32, times weight, then modulated; weight's dtype."""
    D = x.shape[-1]
    flat = x.reshape(-1, D)
    out = torch.empty(flat.shape, device=x.device, dtype=weight.dtype)
    modulated = shift is not None and scale is not None
    shift, scale = (shift, scale) if modulated else (weight, weight)
    size = triton.next_power_of_2(D)
    _norm[(len(flat),)](
        flat, weight, shift, scale, out, flat.stride(0), D, eps, centred, modulated, size, num_warps=4
    )
    return out.view(x.shape)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Half-split rotary of x [..., H, E] by cos and sin [..., 1, E / 2]; contiguous."""
    H, E = x.shape[-2:]
    flat = x.reshape(-1, H, E)
    out = torch.empty(flat.shape, device=x.device, dtype=x.dtype)
    turns = (cos.expand(*x.shape[:-2], 1, E // 2).reshape(-1, E // 2), sin.expand(*x.shape[:-2], 1, E // 2))
    sizes = (triton.next_power_of_2(H), triton.next_power_of_2(E // 2))
    _rotate[(len(flat),)](
        flat, turns[0], turns[1].reshape(-1, E // 2), out, flat.stride(0), flat.stride(1), H, E // 2, *sizes
    )
    return out.view(x.shape)


def add_gated(x: Tensor, gate: Tensor, branch: Tensor) -> Tensor:
    """x + gate · branch for x and branch [..., D] and gate [D], in x's dtype."""
    D = x.shape[-1]
    flat, other = x.reshape(-1, D), branch.reshape(-1, D)
    out = torch.empty_like(flat)
    size = triton.next_power_of_2(D)
    _add_gated[(len(flat),)](flat, gate, other, out, flat.stride(0), other.stride(0), D, size, num_warps=4)
    return out.view(x.shape)


@triton.jit
def _add_gated(x, gate, branch, out, x_row, branch_row, D, SIZE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, SIZE)
    real = i < D
    value = tl.load(branch + row * branch_row + i, mask=real, other=0.0).to(tl.float32)
    value = value * tl.load(gate + i, mask=real, other=0.0).to(tl.float32)
    value += tl.load(x + row * x_row + i, mask=real, other=0.0).to(tl.float32)
    tl.store(out + row * D + i, value.to(out.dtype.element_ty), mask=real)


@triton.jit
def _norm(
    x, weight, shift, scale, out, stride, D, eps, CENTRED: tl.constexpr, MODULATED: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, SIZE)
    real = i < D
    value = tl.load(x + row * stride + i, mask=real, other=0.0).to(tl.float32)
    if CENTRED:
        mean = tl.sum(value, 0) / D
        value = tl.where(real, value - mean, 0.0)
    value = value * tl.rsqrt(tl.sum(value * value, 0) / D + eps)
    value = value * tl.load(weight + i, mask=real, other=0.0).to(tl.float32)
    value = value.to(out.dtype.element_ty)
    if MODULATED:
        value = value * (1 + tl.load(scale + i, mask=real, other=0.0))
        value = value + tl.load(shift + i, mask=real, other=0.0)
    tl.store(out + row * D + i, value.to(out.dtype.element_ty), mask=real)


@triton.jit
def _rotate(x, cos, sin, out, x_row, x_head, H, HALF, HEADS: tl.constexpr, SIZE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    head, i = tl.arange(0, HEADS)[:, None], tl.arange(0, SIZE)[None, :]
    real = (head < H) & (i < HALF)
    c = tl.load(cos + row * HALF + i, mask=i < HALF, other=0.0)
    s = tl.load(sin + row * HALF + i, mask=i < HALF, other=0.0)
    here = x + row * x_row + head * x_head + i
    a = tl.load(here, mask=real, other=0.0).to(tl.float32)
    b = tl.load(here + HALF, mask=real, other=0.0).to(tl.float32)
    there = out + (row * H + head) * 2 * HALF + i
    tl.store(there, (a * c - b * s).to(out.dtype.element_ty), mask=real)
    tl.store(there + HALF, (b * c + a * s).to(out.dtype.element_ty), mask=real)

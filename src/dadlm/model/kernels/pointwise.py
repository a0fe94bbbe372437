"""Norm with modulation, rotary turns, gated sums and the activation, one launch each: the steps between
matrix products.

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


def add_norm(
    x: Tensor,
    branch: Tensor,
    bias: Tensor | None,
    gate: Tensor | None,
    weight: Tensor,
    shift: Tensor | None,
    scale: Tensor | None,
    centred: bool,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """x + gate · (branch + bias) for x and branch [..., D], in x's dtype, and `norm_modulate` of that."""
    D = x.shape[-1]
    flat, other = x.reshape(-1, D), branch.reshape(-1, D)
    total = torch.empty(flat.shape, device=x.device, dtype=x.dtype)
    out = torch.empty(flat.shape, device=x.device, dtype=weight.dtype)
    modulated = shift is not None and scale is not None
    own = (weight if part is None else part for part in (bias, gate, shift, scale))
    _add_norm[(len(flat),)](
        flat, other, *own, weight, total, out, flat.stride(0), other.stride(0), D, eps,
        bias is not None, gate is not None, centred, modulated, triton.next_power_of_2(D), num_warps=4,
    )  # fmt: skip
    return total.view(x.shape), out.view(x.shape)


def gelu(hidden: Tensor, bias: Tensor | None) -> Tensor:
    """GELU in its tanh form of hidden [..., D] + bias [D]."""
    D = hidden.shape[-1]
    flat = hidden.reshape(-1, D)
    out = torch.empty(flat.shape, device=hidden.device, dtype=hidden.dtype)
    given = hidden if bias is None else bias
    size = min(1024, triton.next_power_of_2(D))
    _gelu[(len(flat), triton.cdiv(D, size))](flat, given, out, flat.stride(0), D, bias is not None, size)
    return out.view(hidden.shape)


@triton.jit
def _gelu(hidden, bias, out, stride, D, BIAS: tl.constexpr, SIZE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    x = tl.load(hidden + row * stride + i, mask=i < D, other=0.0).to(tl.float32)
    if BIAS:
        x += tl.load(bias + i, mask=i < D, other=0.0).to(tl.float32)
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)  # sqrt(2 / pi)
    value = x / (1.0 + tl.exp(-2.0 * inner))  # (1 + tanh(y)) / 2 = 1 / (1 + exp(-2 y))
    tl.store(out + row * D + i, value.to(out.dtype.element_ty), mask=i < D)


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
def _normed(
    value, weight, shift, scale, i, D, eps, KIND: tl.constexpr, CENTRED: tl.constexpr, MODULATED: tl.constexpr
):
    """The norm of a row that has zeros behind its end, rounded where torch rounds."""
    real = i < D
    if CENTRED:
        mean = tl.sum(value, 0) / D
        value = tl.where(real, value - mean, 0.0)
    value = value * tl.rsqrt(tl.sum(value * value, 0) / D + eps)
    value = value * tl.load(weight + i, mask=real, other=0.0).to(tl.float32)
    value = value.to(KIND)
    if MODULATED:  # in fp32 with torch's roundings: products of bf16 would be fused with sums or not
        factor = (1.0 + tl.load(scale + i, mask=real, other=0.0).to(tl.float32)).to(KIND)
        value = (value.to(tl.float32) * factor.to(tl.float32)).to(KIND).to(tl.float32)
        value = (value + tl.load(shift + i, mask=real, other=0.0).to(tl.float32)).to(KIND)
    return value


@triton.jit
def _norm(
    x, weight, shift, scale, out, stride, D, eps, CENTRED: tl.constexpr, MODULATED: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, SIZE)
    real = i < D
    value = tl.load(x + row * stride + i, mask=real, other=0.0).to(tl.float32)
    value = _normed(value, weight, shift, scale, i, D, eps, out.dtype.element_ty, CENTRED, MODULATED)
    tl.store(out + row * D + i, value, mask=real)


@triton.jit
def _add_norm(
    x, branch, bias, gate, shift, scale, weight, total, out, x_row, branch_row, D, eps,
    BIAS: tl.constexpr, GATE: tl.constexpr, CENTRED: tl.constexpr, MODULATED: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, SIZE)
    real = i < D
    value = tl.load(branch + row * branch_row + i, mask=real, other=0.0).to(tl.float32)
    if BIAS:
        value += tl.load(bias + i, mask=real, other=0.0).to(tl.float32)
    if GATE:
        value = value * tl.load(gate + i, mask=real, other=0.0).to(tl.float32)
    value += tl.load(x + row * x_row + i, mask=real, other=0.0).to(tl.float32)
    value = value.to(total.dtype.element_ty)
    tl.store(total + row * D + i, value, mask=real)
    # The norm is of what the next layer will find, rounding included.
    value = _normed(
        value.to(tl.float32), weight, shift, scale, i, D, eps, out.dtype.element_ty, CENTRED, MODULATED
    )
    tl.store(out + row * D + i, value, mask=real)


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

"""Rotary positions, half-split."""

import torch
from torch import Tensor

from dadlm.model import kernels


def rotation(position: Tensor, head_width: int, base: float = 10000.0) -> tuple[Tensor, Tensor]:
    """cos and sin [..., 1, head_width / 2] in fp32 for integer positions [...]; -1 is a valid position."""
    exponent = torch.arange(0, head_width, 2, device=position.device, dtype=torch.float32) / head_width
    angle = position[..., None, None].float() * base**-exponent
    return angle.cos(), angle.sin()


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor], grad: bool = True) -> Tensor:
    """Rotate x [..., heads, head_width] by `rotation` of its position; `grad`: gradients are wanted."""
    cos, sin = rotation
    if kernels.usable(x, grad):
        from dadlm.model.kernels.pointwise import rotate as rotate_fused

        return rotate_fused(x, cos, sin)
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

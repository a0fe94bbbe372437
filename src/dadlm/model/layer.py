"""One transformer layer, and rotary positions; what differs between architectures is in `architecture.py`. A
layer takes its attention as a function: the same weights serve the clean stream, packed nodes and decoding.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dadlm.model import kernels
from dadlm.model.config import ModelConfig
from dadlm.model.lora import apply, linear

Rotation = tuple[Tensor, Tensor]
_BEHIND = 1024  # positions that a draft may reach behind the longest text, and more
_LEAST = 4096  # of a table: a draft model may read a longer text than its own context
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def rotation(
    position: Tensor, head_width: int, base: float = 10000.0, table: Rotation | None = None
) -> Rotation:
    """cos and sin [..., 1, head_width / 2] in fp32 for integer positions [...]; -1 is a valid position. With
    a table (`every_rotation`) they are looked up."""
    if table is not None:
        return table[0][position], table[1][position]
    exponent = torch.arange(0, head_width, 2, device=position.device, dtype=torch.float32) / head_width
    angle = position[..., None, None].float() * base**-exponent
    return angle.cos(), angle.sin()


def longest_text(config: ModelConfig) -> int:
    """How many positions of a text `every_rotation` covers."""
    return max(config.context, _LEAST)


def every_rotation(config: ModelConfig, device: torch.device) -> Rotation:
    """`rotation` of all positions, padding and drafts behind the longest text included; that of -1 is the
    last, where indexing finds it."""
    position = torch.arange(longest_text(config) + 2 * config.block + _BEHIND, device=device)
    position[-1] = -1
    return rotation(position, config.query_width, config.rope_theta)


def rotate(x: Tensor, rotation: Rotation, grad: bool = True) -> Tensor:
    """Rotate x [..., heads, head_width] by `rotation` of its position; `grad`: gradients are wanted."""
    cos, sin = rotation
    if kernels.usable(x, grad):
        from dadlm.model.kernels.pointwise import rotate as rotate_fused

        return rotate_fused(x, cos, sin)
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class Shared(NamedTuple):
    """What all layers of a pass share."""

    rotation: Rotation
    condition: Tensor | None
    grad: bool
    """Whether gradients are wanted: kernels that have none are left out."""
    adapted: bool | Tensor = True
    """Whether low-rank adapters take part, or where along the nodes [C]."""


class Norm(nn.Module):
    """RMSNorm, or LayerNorm with weight only, in fp32, and the modulation after it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.width))
        kind = config.architecture_class
        self.centred, self.eps = kind.layer_norm, kind.norm_eps or config.norm_eps

    def forward(self, x: Tensor, shift: Tensor | None, scale: Tensor | None, grad: bool) -> Tensor:
        if kernels.usable(x, grad):
            from dadlm.model.kernels.pointwise import norm_modulate

            return norm_modulate(x, self.weight, shift, scale, self.centred, self.eps)
        if self.centred:
            normed = F.layer_norm(x.float(), x.shape[-1:], eps=self.eps) * self.weight
        else:
            normed = F.rms_norm(x.float(), x.shape[-1:], self.weight.float(), eps=self.eps)
        normed = normed.to(self.weight.dtype)
        return normed if shift is None or scale is None else normed * (1 + scale) + shift


class Condition(nn.Module):
    """The published network's time embedding, always fed with time zero: learned constants."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(256, width), nn.Linear(width, width)

    def forward(self) -> Tensor:
        weight = self.first.weight
        sinusoid = torch.cat([weight.new_ones(128), weight.new_zeros(128)])  # cosines and sines of zero
        return F.silu(self.second(F.silu(self.first(sinusoid))))


class Modulation(nn.Module):
    """adaLN: shifts, scales and gates from the conditioning vector. Without one it changes nothing."""

    def __init__(self, config: ModelConfig, parts: int) -> None:
        super().__init__()
        self.parts, self.kept, self.buffer = parts, None, None
        inputs = config.architecture_class.condition_width
        self.linear = nn.Linear(inputs, parts * config.width) if inputs else None

    kept: tuple[Tensor | None, ...] | None
    """What it returns, while the backbone keeps constants (`Model.keep_constants`)."""
    buffer: tuple[Tensor | None, ...] | None
    """The tensors of that: kept at the same addresses, which captured graphs read."""

    def forward(self, condition: Tensor | None) -> tuple[Tensor | None, ...]:
        if self.kept is not None:
            return self.kept
        if self.linear is None or condition is None:
            return (None,) * self.parts
        return self.linear(condition).chunk(self.parts, -1)


def refreshed(
    old: tuple[Tensor | None, ...] | None, new: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...]:
    """The values of `new`, copied into `old` if they have the same kinds."""

    def kind(x: Tensor | None) -> object:
        return None if x is None else (x.shape, x.dtype, x.device)

    if old is None or [*map(kind, old)] != [*map(kind, new)]:
        return new
    for here, x in zip(old, new, strict=True):
        if here is not None and x is not None:
            here.copy_(x)
    return old


class Layer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        kind, width, rank = config.architecture_class, config.width, config.lora
        self.heads = config.heads, config.key_heads, config.key_heads  # of queries, keys and values
        self.dropout = config.dropout
        self.activate = kind.activate
        self.norm_attention, self.norm_mlp = Norm(config), Norm(config)
        inside = config.mlp_width or 4 * width
        self.qkv = linear(width, sum(self.heads) * config.query_width, rank=rank)
        self.out = linear(config.heads * config.query_width, width, rank=rank)
        self.up = linear(width, kind.mlp_inputs * inside, bias=kind.biases, rank=rank)
        self.down = linear(inside, width, bias=kind.biases, rank=rank)
        self.modulation = Modulation(config, 6)

    def stacked(self) -> dict[Tensor, list[int]]:
        """The weights that are several matrices on top of each other, and how many rows each has."""
        head, inside = self.qkv.out_features // sum(self.heads), self.down.in_features
        projections = [heads * head for heads in self.heads]
        return {self.qkv.weight: projections, self.up.weight: [inside] * (self.up.out_features // inside)}

    def project(self, x: Tensor, shared: Shared) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [B, C, H, E] and keys, and values [B, C, H', E], of the layer's input x
        [B, C, D]."""
        return self.turned(*self.heads_of(self.before_attention(x, shared), shared), shared)

    def before_attention(self, x: Tensor, shared: Shared) -> Tensor:
        shift, scale = self.modulation(shared.condition)[:2]
        return self.norm_attention(x, shift, scale, shared.grad)

    def heads_of(self, normed: Tensor, shared: Shared) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of each head, before their rotary turn."""
        qkv = apply(self.qkv, normed, shared.adapted)
        q, k, v = qkv.unflatten(-1, (sum(self.heads), -1)).split(self.heads, -2)
        return q, k, v

    def turned(self, q: Tensor, k: Tensor, v: Tensor, shared: Shared) -> tuple[Tensor, Tensor, Tensor]:
        q, k = (rotate(turned, shared.rotation, shared.grad) for turned in (q, k))
        return q, k, v

    def forward(self, x: Tensor, shared: Shared, attend: Attend) -> Tensor:
        return self.finish(x, attend(*self.project(x, shared)), shared)

    def finish(self, x: Tensor, attended: Tensor, shared: Shared) -> Tensor:
        """Add what was attended to [B, C, H, E], then the MLP, to the residual stream x [B, C, D]."""
        _, _, gate_attention, shift, scale, gate_mlp = self.modulation(shared.condition)
        x = self._add(x, apply(self.out, attended.flatten(-2), shared.adapted), gate_attention, shared.grad)
        hidden = apply(self.up, self.norm_mlp(x, shift, scale, shared.grad), shared.adapted)
        return self._add(x, apply(self.down, self.activate(hidden), shared.adapted), gate_mlp, shared.grad)

    def _add(self, x: Tensor, branch: Tensor, gate: Tensor | None, grad: bool) -> Tensor:
        branch = F.dropout(branch, self.dropout, self.training)
        if gate is None:
            return x + branch
        if kernels.usable(x, grad):
            from dadlm.model.kernels.pointwise import add_gated

            return add_gated(x, gate, branch)
        return torch.addcmul(x, gate, branch)

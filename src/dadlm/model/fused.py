"""The layers of a pass without gradients, in fewer launches: adding to the residual stream and the norm that
follows are one kernel, and so are rotary turn and attention where the backbone has a kernel for both.

The slow twin is `Backbone` calling whole layers. The same numbers are rounded in the same places, except for
biases of a single row: they are added in fp32 after the product, not within it. Layers are not called as
modules here, so hooks on them only see passes with gradients.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dadlm.model import kernels
from dadlm.model.architecture import Lean
from dadlm.model.layer import Layer, Norm, Shared
from dadlm.model.lora import apply

if TYPE_CHECKING:
    from dadlm.model.backbone import Backbone

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Of a layer's index, and its queries, keys and values."""
AtOnce = Callable[[int, Tensor, Tensor, Tensor], Tensor | None]


class Following(NamedTuple):
    """The norm of the layer that comes next, and its modulation."""

    norm: Norm
    shift: Tensor | None
    scale: Tensor | None


def usable(backbone: "Backbone", x: Tensor, shared: Shared) -> bool:
    """Not under autocast, where products round in places that nothing here knows of, and not with sharded
    weights, which are gathered when a layer is called, as is not done here."""
    drops = backbone.training and backbone.config.dropout > 0
    if any(hasattr(parameter, "device_mesh") for parameter in backbone.layers[0].parameters()):
        return False
    return kernels.usable(x, shared.grad) and not drops and not torch.is_autocast_enabled(x.device.type)


def through(
    layers: list[Layer],
    first: int,
    x: Tensor,
    shared: Shared,
    attend: Attend,
    at_once: AtOnce,
    following: Following | None,
) -> Tensor:
    """x behind these layers, of which the first has the index `first`, and behind `following` if given."""
    normed = layers[0].before_attention(x, shared)
    for place, layer in enumerate(layers):
        index, heads = first + place, layer.heads_of(normed, shared)
        attended = at_once(index, *heads)
        if attended is None:
            attended = attend(index, *layer.turned(*heads, shared))
        _, _, gate_attention, shift, scale, gate_mlp = layer.modulation(shared.condition)
        branch = _product(layer.out, attended.flatten(-2), shared)
        x, normed = _add(x, *branch, gate_attention, Following(layer.norm_mlp, shift, scale))
        branch = _product(layer.down, _activated(layer, normed, shared), shared)
        if place + 1 < len(layers):
            after = layers[place + 1]
            then = Following(after.norm_attention, *after.modulation(shared.condition)[:2])
        else:
            then = following
        x, normed = _add(x, *branch, gate_mlp, then)
    return normed


def _product(linear: nn.Linear, x: Tensor, shared: Shared) -> tuple[Tensor, Tensor | None]:
    """A product, and a bias that is still to be added: for a single row torch would copy it in a launch of
    its own, before the product."""
    if type(linear) is nn.Linear and linear.bias is not None and x.shape[:-1].numel() == 1:
        return F.linear(x, linear.weight), linear.bias
    return apply(linear, x, shared.adapted), None


def _activated(layer: Layer, normed: Tensor, shared: Shared) -> Tensor:
    if layer.activate is not Lean.activate:
        return layer.activate(apply(layer.up, normed, shared.adapted))
    up, rows = layer.up, normed.shape[:-1]
    half = normed.dtype == up.weight.dtype in (torch.bfloat16, torch.float16)
    if type(up) is nn.Linear and up.bias is not None and rows.numel() > 1 and half and normed.is_cuda:
        # Within the product, which rounds once instead of twice; its GELU is too coarse for single precision.
        product = torch._addmm_activation  # type: ignore[attr-defined]
        return product(up.bias, normed.flatten(0, -2), up.weight.t(), use_gelu=True).view(*rows, -1)
    from dadlm.model.kernels.pointwise import gelu

    return gelu(*_product(layer.up, normed, shared))


def _add(
    x: Tensor, branch: Tensor, bias: Tensor | None, gate: Tensor | None, then: Following | None
) -> tuple[Tensor, Tensor]:
    """The residual stream with a branch added, and the norm of it; without one the stream twice."""
    if then is None:
        branch = branch if bias is None else branch + bias
        x = x + branch if gate is None else torch.addcmul(x, gate, branch)
        return x, x
    from dadlm.model.kernels.pointwise import add_norm

    norm = then.norm
    return add_norm(x, branch, bias, gate, norm.weight, then.shift, then.scale, norm.centred, norm.eps)

"""Low-rank adapters: frozen matrices that learn W + 2·B·A with A [R, in] and B [out, R]. Only the mask token
and what DA-DLM adds learn, too; `merge` makes plain weights of them at the end."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_SCALE = 2.0
_A, _B = ".lora_a", ".lora_b"
MASK = "backbone.mask_change"  # what the mask's embedding has learned; the matrix of all embeddings is frozen
_EMBEDDING = "backbone.embedding.weight"
_LEARNS = (MASK, "graph.", "head.offset", "head.edge.")


class LoraLinear(nn.Linear):
    """A linear layer with an adapter, which changes nothing before it has learned: B starts at zero."""

    def __init__(self, inputs: int, outputs: int, bias: bool, rank: int) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.lora_a = nn.Parameter(torch.randn(rank, inputs) * inputs**-0.5)
        self.lora_b = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + self.change(input)

    def change(self, input: Tensor) -> Tensor:
        return _SCALE * F.linear(F.linear(input, self.lora_a), self.lora_b)


def apply(layer: nn.Linear, x: Tensor, adapted: bool | Tensor) -> Tensor:
    """A linear layer of x [B, C, D] with its adapter, if it has one, or as it was before; a tensor [C] says
    where along C the adapter takes part."""
    if adapted is True or not isinstance(layer, LoraLinear):
        return layer(x)
    plain = F.linear(x, layer.weight, layer.bias)
    return plain if adapted is False else torch.where(adapted[:, None], plain + layer.change(x), plain)


def linear(inputs: int, outputs: int, *, bias: bool = False, rank: int = 0) -> nn.Linear:
    """A linear layer, with an adapter if it has a rank."""
    return LoraLinear(inputs, outputs, bias, rank) if rank else nn.Linear(inputs, outputs, bias=bias)


def freeze(model: nn.Module) -> None:
    """Freeze everything but adapters and new parts."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith((_A, _B)) or name.startswith(_LEARNS))


def merge(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a model with adapters as those of one without."""
    plain = {name: tensor for name, tensor in tensors.items() if not name.endswith((_A, _B, MASK))}
    for name in tensors:
        if name.endswith(_A):
            matrix = name.removesuffix(_A)
            change = tensors[matrix + _B] @ tensors[name]
            plain[matrix + ".weight"] = tensors[matrix + ".weight"] + _SCALE * change
    if MASK in tensors:
        embedding = tensors[_EMBEDDING].clone()
        embedding[-1] += tensors[MASK]  # the mask is the last token
        plain[_EMBEDDING] = embedding
    return plain

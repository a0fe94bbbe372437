"""Weights in 8 bits: a matrix becomes integers from -127 to 127 and a float32 scale for each row (one output
of a linear layer, one token of an embedding). Everything else stays in float32."""

from collections.abc import Collection, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from dadlm.errors import CheckpointError

T = TypeVar("T")
_MOST = 127
_SCALE = ".scale"  # name of a matrix's scales: its own name and this
_FEW_ROWS = 16  # candidates and their offsets: they steer the whole graph and would save nothing


def quantise(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, every matrix in 8 bits and with its scales. The largest number of a row decides its
    scale: smaller scales, which clip it, were worse (docs/experiments.md)."""
    stored = {}
    for name, tensor in tensors.items():
        exact = tensor.detach().float()
        if exact.dim() != 2 or min(exact.shape) < _FEW_ROWS:
            stored[name] = exact
            continue
        if not bool(exact.isfinite().all()):  # integers could not show it
            raise CheckpointError(f"{name} has values that are not finite: it cannot be stored in 8 bits")
        largest = exact.abs().amax(1, keepdim=True)
        scale = torch.where(largest > 0, largest / _MOST, 1.0)
        stored[name] = (exact / scale).round().clamp(-_MOST, _MOST).to(torch.int8)
        stored[name + _SCALE] = scale.squeeze(1)
    return stored


def dequantise(stored: Mapping[str, Tensor], origin: object) -> dict[str, Tensor]:
    """The float32 tensors of what `quantise` made; missing or unfitting scales are refused."""
    matrices = {name for name, tensor in stored.items() if tensor.dtype == torch.int8}
    tensors = without_scales(stored, matrices)
    for name in matrices:
        matrix, scale = stored[name], stored.get(name + _SCALE)
        if scale is None or not scale.is_floating_point() or scale.shape != matrix.shape[:1]:
            found = "none" if scale is None else f"{scale.dtype} of shape {tuple(scale.shape)}"
            raise CheckpointError(
                f"the 8-bit weights of {origin} are damaged: {name} has {len(matrix)} rows "
                f"and wants as many scales, found {found}"
            )
        tensors[name] = matrix.float() * scale.float()[:, None]
    return tensors


def without_scales(stored: Mapping[str, T], matrices: Collection[str]) -> dict[str, T]:
    """What is stored, without the scales of these matrices."""
    scales = {name + _SCALE for name in matrices}
    return {name: value for name, value in stored.items() if name in matrices or name not in scales}

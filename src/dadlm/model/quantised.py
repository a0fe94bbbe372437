"""Weights in 8 bits: a matrix becomes whole numbers from -127 to 127 and a float32 scale for each row.

A row is what makes one output (of an embedding: one token), so a row of small numbers keeps its precision
beside a row of large ones. Everything else stays in float32. Knows nothing of files.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from dadlm.errors import CheckpointError

_MOST = 127
_SCALE = ".scale"  # name of a matrix's scales: its own name and this
_FEW_ROWS = 16  # candidates and their offsets: they steer the whole graph and would save nothing


def quantise(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, every matrix in 8 bits with its scales beside it.

    The largest number of a row decides its scale. Smaller scales, which clip it, were tried: with 8 bits what
    clipping spoils is more than what the finer steps gain (docs/experiments.md).
    """
    stored = {}
    for name, tensor in tensors.items():
        exact = tensor.detach().float()
        if _is_small(exact):
            stored[name] = exact
            continue
        if not bool(exact.isfinite().all()):  # whole numbers could not tell
            raise CheckpointError(f"{name} has values that are not finite: it cannot be stored in 8 bits")
        largest = exact.abs().amax(1, keepdim=True)
        scale = torch.where(largest > 0, largest / _MOST, 1.0)
        stored[name] = (exact / scale).round().clamp(-_MOST, _MOST).to(torch.int8)
        stored[name + _SCALE] = scale.squeeze(1)
    return stored


def dequantise(stored: Mapping[str, Tensor], origin: object) -> dict[str, Tensor]:
    """float32 tensors from what `quantise` made; scales that are missing or do not fit are refused."""
    matrices = {name: tensor for name, tensor in stored.items() if tensor.dtype == torch.int8}
    tensors = {
        name: tensor
        for name, tensor in stored.items()
        if name not in matrices and name.removesuffix(_SCALE) not in matrices
    }
    for name, matrix in matrices.items():
        scale = stored.get(name + _SCALE)
        if scale is None or not scale.is_floating_point() or scale.shape != matrix.shape[:1]:
            found = "none" if scale is None else f"{scale.dtype} of shape {tuple(scale.shape)}"
            raise CheckpointError(
                f"the 8-bit weights of {origin} are damaged: {name} has {len(matrix)} rows "
                f"and wants as many scales, found {found}"
            )
        tensors[name] = matrix.float() * scale.float()[:, None]
    return tensors


def without_scales(
    header: Mapping[str, tuple[str, tuple[int, ...]]],
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of the tensors that `dequantise` would give, from those of what is stored."""
    matrices = {name for name, (kind, _) in header.items() if kind == "I8"}
    return {
        name: found
        for name, found in header.items()
        if name in matrices or name.removesuffix(_SCALE) not in matrices
    }


def _is_small(tensor: Tensor) -> bool:
    return tensor.dim() != 2 or min(tensor.shape) < _FEW_ROWS

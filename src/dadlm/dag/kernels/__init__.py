"""Triton twins of the algorithms over a chain of groups, each in one launch, on flat batches: contiguous
emissions [B, N, K] and transitions [B, N, K, K]."""

from importlib.util import find_spec

import torch
from torch import Tensor

_HAS_TRITON = find_spec("triton") is not None
MAX_CANDIDATES = 32  # a tile holds K² transitions of several chains


def usable(*tensors: Tensor) -> bool:
    """Whether the kernels can take these tensors: on CUDA, with Triton there, and not in double precision."""
    return (
        all(tensor.is_cuda and tensor.dtype != torch.float64 for tensor in tensors)
        and tensors[0].shape[-1] <= MAX_CANDIDATES
        and _HAS_TRITON
    )


def flat(x: Tensor, dims: int) -> Tensor:
    """x with its last `dims` dimensions kept and one batch dimension before them, contiguous."""
    return x.reshape(-1, *x.shape[-dims:]).contiguous()

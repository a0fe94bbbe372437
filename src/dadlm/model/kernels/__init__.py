"""Triton twins of the network's parts, for CUDA without gradients (decoding and validation)."""

from importlib.util import find_spec

import torch
from torch import Tensor

HAS_TRITON = find_spec("triton") is not None


def takes(x: Tensor) -> bool:
    """Whether there are kernels for such tensors: on CUDA, with Triton there, and not in double precision."""
    return x.is_cuda and HAS_TRITON and x.dtype != torch.float64


def usable(x: Tensor) -> bool:
    """Whether a forward-only kernel may stand in for torch here; compiled code is fused already."""
    return takes(x) and not torch.is_grad_enabled() and not torch.compiler.is_compiling()

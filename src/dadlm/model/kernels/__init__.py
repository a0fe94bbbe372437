"""Triton twins of the network's parts, for CUDA."""

from importlib.util import find_spec

import torch
from torch import Tensor

HAS_TRITON = find_spec("triton") is not None


def takes(x: Tensor) -> bool:
    """Whether there are kernels for such tensors: on CUDA, with Triton, and not in double precision."""
    return x.is_cuda and HAS_TRITON and x.dtype != torch.float64


def usable(x: Tensor, grad: bool) -> bool:
    """Whether a kernel that has no gradient may stand in for torch; compiled code is fused already."""
    return takes(x) and not grad and not torch.compiler.is_compiling()


def attends(q: Tensor, grad: bool) -> bool:
    """Whether `attend`, which has no gradient, has tiles for the width of these heads."""
    return usable(q, grad) and q.shape[-1] in (16, 32, 64, 128)


def turns(q: Tensor, grad: bool) -> bool:
    """Whether `attend` can do the rotary turn, too: with wide heads in single precision it would spill."""
    return attends(q, grad) and (q.shape[-1] <= 64 or q.dtype != torch.float32)

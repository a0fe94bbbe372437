"""Keys and values of the finished text, preallocated: each block is written once and read by all later ones.

A layers, B rows, L positions, H heads, E head width.
"""

import torch
from torch import Tensor

from dadlm.model import Context, Model

_GRAIN = 64  # attention reads whole grains, so that few shapes occur


class Cache(Context):
    """A `Context` that grows; every row has its own length."""

    def __init__(self, model: Model, rows: int, length: int) -> None:
        config = model.config
        length = -(-length // _GRAIN) * _GRAIN
        shape = (config.layers, rows, length, config.heads, config.query_width)
        dtype = model.backbone.embedding.weight.dtype
        self.k = torch.zeros(shape, device=model.device, dtype=dtype)
        self.v = torch.zeros(shape, device=model.device, dtype=dtype)
        self.ids = torch.zeros(rows, length, device=model.device, dtype=torch.int64)
        # Before anything is written, attention sees masked zeros instead of no keys. On CUDA the kernel
        # reads as far as each row sees, so nothing is cut off here, and nothing waits for a maximum.
        self.used = length if self.k.is_cuda else _GRAIN

    def store(self, layer: int, k: Tensor, v: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        row = torch.arange(len(position), device=position.device)[:, None]
        self.k[layer][row, position] = k.to(self.k.dtype)
        self.v[layer][row, position] = v.to(self.v.dtype)
        if layer == 0 and not self.k.is_cuda:
            self.used = max(self.used, -(-(int(position.max()) + 1) // _GRAIN) * _GRAIN)
        return self[layer]

    def remember(self, ids: Tensor, position: Tensor) -> None:
        row = torch.arange(len(position), device=position.device)[:, None]
        self.ids[row, position] = ids

    def before(self, first: Tensor) -> Tensor:
        return self.ids.gather(1, (first - 1).clamp(min=0))

    def __getitem__(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.k[layer, :, : self.used], self.v[layer, :, : self.used]

    def keep(self, rows: Tensor) -> None:
        """Drop the rows that are not listed."""
        if len(rows) == self.k.shape[1]:
            return  # copying the whole cache for nothing would double its memory
        self.k, self.v, self.ids = self.k[:, rows], self.v[:, rows], self.ids[rows]

"""Keys and values of the texts in work, allocated once: a row takes a slot, and its blocks are written there.

A layers, S slots, B rows of a pass, L positions, H' heads of keys and values, E head width.
"""

import warnings
from functools import cached_property

import torch
from torch import Tensor

from dadlm.model import Context, Model

_GRAIN = 64  # attention reads whole grains, so that few shapes occur
_SHARE = 0.6  # of the free memory of a GPU; the rest is for the passes themselves


class Cache:
    """k and v [A, S, L, H', E]. From position `spare` on padding is written, which only padding sees."""

    def __init__(self, model: Model, slots: int, positions: int) -> None:
        config, self.spare = model.config, positions
        shape = (config.layers, slots, padded_length(model, positions), config.key_heads, config.query_width)
        dtype = model.backbone.embedding.weight.dtype
        self.k = torch.zeros(shape, device=model.device, dtype=dtype)
        self.v = torch.zeros(shape, device=model.device, dtype=dtype)

    def view(self, rows: slice | Tensor, text: Tensor, used: int) -> "CacheView":
        """The slots of some rows as the context of a pass, which sees the first `used` positions."""
        return CacheView(self, rows, text, used)

    def copy_from(self, other: "Cache") -> None:
        """Take over the slots of a smaller cache."""
        _, slots, length, _, _ = other.k.shape
        for mine, theirs in ((self.k, other.k), (self.v, other.v)):
            mine[:, :slots, :length] = theirs

    def move(self, source: int, target: int, length: int) -> None:
        """Give the first `length` positions of one slot to another."""
        for x in (self.k, self.v):
            x[:, target, :length] = x[:, source, :length]


class CacheView(Context):
    """Some slots as the context of a forward pass. A slice of slots costs nothing; chosen ones are copied."""

    def __init__(self, cache: Cache, rows: slice | Tensor, text: Tensor, used: int) -> None:
        self.k, self.v, self.text, self.rows = cache.k, cache.v, text, rows
        length = cache.k.shape[2]
        # On CUDA the kernel reads as far as each row sees, and a captured pass must not know lengths.
        self.used = length if cache.k.is_cuda else min(length, -(-max(used, 1) // _GRAIN) * _GRAIN)

    @cached_property
    def index(self) -> Tensor:
        """[B, 1]: the slots."""
        if isinstance(self.rows, slice):
            return torch.arange(self.rows.start, self.rows.stop, device=self.k.device)[:, None]
        return self.rows[:, None]

    def store(self, layer: int, k: Tensor, v: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        self.k[layer][self.index, position] = k.to(self.k.dtype)
        self.v[layer][self.index, position] = v.to(self.v.dtype)
        return self[layer]

    def in_place(self, layer: int) -> tuple[Tensor, Tensor] | None:
        return self[layer] if isinstance(self.rows, slice) else None  # chosen slots are copies

    def remember(self, ids: Tensor, position: Tensor) -> None:
        """The text is there already."""

    def before(self, first: Tensor) -> Tensor:
        return self.text[self.rows].gather(1, (first - 1).clamp(min=0))

    def __getitem__(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.k[layer][self.rows, : self.used], self.v[layer][self.rows, : self.used]


def padded_length(model: Model, positions: int) -> int:
    """Positions that a slot has: room for a block of padding behind `positions`, in whole grains."""
    return -(-(positions + model.config.block) // _GRAIN) * _GRAIN


def bytes_per_slot(model: Model, positions: int | None = None) -> int:
    config = model.config
    length = padded_length(model, config.context if positions is None else positions)
    size = model.backbone.embedding.weight.element_size()
    return 2 * config.layers * length * config.key_heads * config.query_width * size


def slots_that_fit(model: Model, wanted: int, free: int | None = None) -> int:
    """As many slots as wanted, or fewer, with a warning, where the GPU's free memory would not do."""
    if model.config.family == "mdlm":
        return wanted
    if free is None:
        if model.device.type != "cuda":
            return wanted
        free = torch.cuda.mem_get_info(model.device)[0]
    fits = max(1, int(_SHARE * free / bytes_per_slot(model)))
    if fits < wanted:
        each, left = bytes_per_slot(model) / 2**20, free / 2**20
        warnings.warn(
            f"{fits} rows at once instead of {wanted}: each takes {each:.0f} MiB of keys and values, "
            f"and {left:.0f} MiB are free",
            stacklevel=2,
        )
    return min(wanted, fits)

"""Keys and values of all rows in work, allocated once: a row takes a slot and gives it back.

A forward pass sees part of the slots: the first few, which costs nothing, or chosen ones, which are copied.

S slots, L positions.
"""

import warnings

import torch
from torch import Tensor

from dadlm.decode.cache import Cache
from dadlm.decode.predict import BlockPredictor, CausalPredictor
from dadlm.model import Context, Model

_GRAIN = 64  # attention reads whole grains on the CPU, so that few shapes occur
_SHARE = 0.6  # of the free memory of a GPU; the rest is for the passes themselves


class Slots(Cache):
    """A cache with a spare block behind the context, where padding is written, which only padding sees."""

    def __init__(self, model: Model, slots: int) -> None:
        super().__init__(model, slots, _positions(model))

    def part(self, rows: slice | Tensor, used: int) -> "Part":
        """The slots of some rows, of which the first `used` positions are seen."""
        return Part(self, rows, used)

    def move(self, source: int, target: int, length: int) -> None:
        """Give the first `length` positions of one slot to another."""
        for x in (self.k, self.v):
            x[:, target, :length] = x[:, source, :length]
        self.ids[target, :length] = self.ids[source, :length]


class Part(Context):
    """Some slots as the context of a forward pass."""

    def __init__(self, slots: Slots, rows: slice | Tensor, used: int) -> None:
        self.k, self.v, self.ids, self.rows = slots.k, slots.v, slots.ids, rows
        length = slots.k.shape[2]
        # On CUDA the kernel reads as far as each row sees, and a captured pass must not know lengths.
        self.used = length if slots.k.is_cuda else min(length, -(-max(used, 1) // _GRAIN) * _GRAIN)
        if isinstance(rows, slice):
            self.index = torch.arange(rows.start, rows.stop, device=slots.k.device)
        else:
            self.index = rows

    def store(self, layer: int, k: Tensor, v: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        row = self.index[:, None]
        self.k[layer][row, position] = k.to(self.k.dtype)
        self.v[layer][row, position] = v.to(self.v.dtype)
        return self[layer]

    def remember(self, ids: Tensor, position: Tensor) -> None:
        self.ids[self.index[:, None], position] = ids

    def before(self, first: Tensor) -> Tensor:
        return self.ids[self.index].gather(1, (first - 1).clamp(min=0))

    def __getitem__(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.k[layer][self.rows, : self.used], self.v[layer][self.rows, : self.used]


class BlockPart(BlockPredictor):
    """BD3LM and DA-DLM over some slots."""

    def __init__(self, model: Model, part: Part) -> None:
        self.model, self.part = model, part

    def _context(self) -> Context:
        return self.part


class CausalPart(CausalPredictor):
    """AR over some slots, whose texts end with the tokens `last` [B]."""

    def __init__(self, model: Model, part: Part, last: Tensor) -> None:
        self.model, self.cache, self.last = model, part, last  # type: ignore[assignment]


def _positions(model: Model) -> int:
    return model.config.context + model.config.block


def bytes_per_slot(model: Model) -> int:
    config = model.config
    size = model.backbone.embedding.weight.element_size()
    positions = -(-_positions(model) // _GRAIN) * _GRAIN
    return 2 * config.layers * positions * config.heads * config.query_width * size


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

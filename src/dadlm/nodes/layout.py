"""Where every node lives: in *slots* (regular, one place for every node that could exist) and *packed*.

A block of N positions with K candidates has M = (start) + N·K slots: the start-of-block node first, then
the K slots of each group. A masked position uses all K of them, an anchor only the first. Packed storage
[B, C] keeps the nodes that exist, so projections and MLPs cost nothing for the others; inside a block,
attention and transitions go back to slots. Knows where nodes are, never what is in them.

B rows, G blocks, N block size, K candidates, M slots per block, C packed nodes per row, F features.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dadlm.nodes.capacity import TILE, PaddedSizes, capacity
from dadlm.nodes.moves import Move, Selection, compact, select


@dataclass(frozen=True)
class Nodes:
    """The layout of a batch of blocks. Build it with `lay_out`."""

    masked: Tensor
    """[B, G, N] bool: candidate group (True) or anchor."""
    first: Tensor
    """[B, G]: sequence position of each block's first token; also how much clean prefix it sees."""
    candidates: int
    """K."""
    start: bool
    """Whether each block has a start-of-block node (DA-DLM)."""
    node_of_slot: Tensor | None
    """[B, G·M]: packed index of each slot, -1 where no node exists; None: not packed, slots are nodes."""
    slot_of_node: Tensor | None
    """[B, C]: slot of each packed node, -1 for padding."""
    sizes: PaddedSizes | None = None

    @property
    def slots(self) -> int:
        """M."""
        return int(self.start) + self.masked.shape[2] * self.candidates

    @property
    def is_one_block(self) -> bool:
        """A single block whose slots are its nodes, as in decoding on CUDA."""
        return self.masked.shape[1] == 1 and self.node_of_slot is None

    @cached_property
    def active(self) -> Tensor:
        """[B, G, N, K]: the nodes a path may take."""
        return _active(self.masked, self.candidates)

    @cached_property
    def is_key(self) -> Tensor:
        """[B, G, M]: slots that other nodes of the block attend to: neither inactive nor the start."""
        return self._with_start(self.active.flatten(2))

    @cached_property
    def position(self) -> Tensor:
        """[B, C]: rotary position; the start node stands one before the block's first token."""
        B, G, N = self.masked.shape
        offset = torch.arange(N, device=self.first.device).repeat_interleave(self.candidates)
        if self.start:
            offset = torch.cat([offset.new_full((1,), -1), offset])
        return self.from_slots((self.first[..., None] + offset).expand(B, G, self.slots))

    @cached_property
    def visible(self) -> Tensor:
        """[B, C]: how many positions of the clean prefix the node sees (all blocks before its own)."""
        return self.from_slots(self.first[..., None].expand(*self.first.shape, self.slots))

    @cached_property
    def is_candidate(self) -> Tensor:
        """[B, C]: nodes of masked positions, the only ones that need the vocabulary head."""
        slots = self.masked[..., None].expand(*self.masked.shape, self.candidates).flatten(2)
        return self.from_slots(self._with_start(slots))

    @cached_property
    def is_start(self) -> Tensor:
        """[B, C]: start-of-block nodes."""
        B, G, _ = self.masked.shape
        return self.from_slots(
            (torch.arange(self.slots, device=self.first.device) < self.start).expand(B, G, -1)
        )

    @cached_property
    def heads(self) -> Selection:
        """Those nodes, out of all B·C."""
        return select(self.is_candidate.flatten(), None if self.sizes is None else self.sizes.masked)

    @cached_property
    def group(self) -> Tensor:
        """[B, C]: index g·N + i of the node's group in its row (-1 for start nodes and padding)."""
        B, G, N = self.masked.shape
        index = torch.arange(G * N, device=self.first.device).view(1, G, N, 1) + 1
        index = index.expand(B, G, N, self.candidates).flatten(2)
        return self.from_slots(self._with_start(index)) - 1

    @cached_property
    def candidate(self) -> Tensor:
        """[B, C]: index k of the node in its group (0 for anchors, start nodes and padding)."""
        B, G, N = self.masked.shape
        index = torch.arange(self.candidates, device=self.first.device).repeat(N).expand(B, G, -1)
        return self.from_slots(self._with_start(index))

    def _with_start(self, slots: Tensor) -> Tensor:
        """Put a zero for the start node, if there is one, before the slots of the groups [B, G, N·K]."""
        return torch.cat([torch.zeros_like(slots[..., :1]), slots], -1) if self.start else slots

    def to_slots(self, x: Tensor) -> Tensor:
        """[B, C, F...] → [B, G, M, F...], zeros where no node exists."""
        B, G = self.first.shape
        if self.node_of_slot is None or self.slot_of_node is None:
            return x.view(B, G, self.slots, *x.shape[2:])
        moved = Move.apply(x, self.node_of_slot, self.slot_of_node)
        return moved.view(B, G, self.slots, *x.shape[2:])  # type: ignore[union-attr]

    def from_slots(self, x: Tensor) -> Tensor:
        """[B, G, M, F...] → [B, C, F...], zeros in the padding."""
        flat = x.flatten(1, 2)
        if self.node_of_slot is None or self.slot_of_node is None:
            return flat
        return Move.apply(flat, self.slot_of_node, self.node_of_slot)  # type: ignore[return-value]

    def groups(self, x: Tensor) -> Tensor:
        """Slots [B, G, M, F...] without the start node, by group: [B, G, N, K, F...]."""
        B, G, N = self.masked.shape
        return x[:, :, int(self.start) :].reshape(B, G, N, self.candidates, *x.shape[3:])

    def remember(self, name: str, make: Callable[[], Any]) -> Any:
        """A thing derived from this layout (an attention mask), made once and used by every layer."""
        if name not in self._derived:
            self._derived[name] = make()
        return self._derived[name]

    @cached_property
    def _derived(self) -> dict[str, Any]:
        return {}

    @cached_property
    def collapsed(self) -> "Nodes":
        """The same blocks before expansion: one node per position, as BD3LM has them."""
        return _one_node_each(self.masked, self.first, False)


def _active(masked: Tensor, candidates: int) -> Tensor:
    first = torch.arange(candidates, device=masked.device) == 0
    return masked[..., None] | first


def lay_out(
    masked: Tensor,
    first: Tensor,
    *,
    candidates: int,
    start: bool,
    packed: bool = True,
    sizes: PaddedSizes | None = None,
) -> Nodes:
    """Lay out blocks from masked [B, G, N] and the position of each block's first token [B, G]."""
    if candidates == 1:
        return replace(_one_node_each(masked, first, start), sizes=sizes)
    if not packed:
        return Nodes(masked, first, candidates, start, None, None, sizes)
    exists = _active(masked, candidates).flatten(2)
    if start:
        exists = torch.cat([torch.ones_like(exists[..., :1]), exists], -1)
    exists = exists.flatten(1)
    if sizes is not None:
        padded = sizes.nodes
    else:
        padded = capacity(int(exists.sum(1).max()), exists.shape[1], exact=not masked.is_cuda)
    node_of_slot, slot_of_node = compact(exists, padded)
    return Nodes(masked, first, candidates, start, node_of_slot, slot_of_node, sizes)


def _one_node_each(masked: Tensor, first: Tensor, start: bool) -> Nodes:
    """With one candidate every slot is a node; on CUDA their number is padded to the grid of tiles."""
    B, G, N = masked.shape
    count = G * (int(start) + N)
    if G == 1 or not masked.is_cuda or count % TILE == 0:
        return Nodes(masked, first, 1, start, None, None)
    slot = torch.arange(count, device=masked.device).expand(B, -1)
    return Nodes(masked, first, 1, start, slot, F.pad(slot, (0, -count % TILE), value=-1))

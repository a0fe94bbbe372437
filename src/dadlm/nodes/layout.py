"""Where nodes are stored: in *slots* (regular, a place for every node that could exist), or *packed*.

A block of N positions with K candidates has M = (start) + N·K slots: the start-of-block node first, then
the K slots of each group. A masked position uses all K of them, an anchor only the first. Packed storage
[B, C] keeps only the nodes that exist.

B rows, G blocks, N block size, K candidates, M slots per block, C packed nodes per row, F features.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dadlm.nodes.moves import TILE, Move, PaddedSizes, Selection, capacity, compact, select, take


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
        """One block in each row, not packed, as in decoding on CUDA."""
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
        offset = torch.arange(
            -int(self.start), self.masked.shape[2] * self.candidates, device=self.first.device
        )
        if self.candidates > 1:  # -1 stays: that is the start
            offset = offset.div(self.candidates, rounding_mode="floor")
        return self.from_slots(self.first[..., None] + offset)

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
        is_start = torch.arange(self.slots, device=self.first.device) < self.start
        return self.from_slots(is_start.expand(*self.first.shape, -1))

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
        moved = x if self.node_of_slot is None else Move.apply(x, self.node_of_slot, self.slot_of_node)
        return moved.view(B, G, self.slots, *x.shape[2:])  # type: ignore[union-attr]

    def from_slots(self, x: Tensor) -> Tensor:
        """[B, G, M, F...] → [B, C, F...], zeros in the padding."""
        flat = x.flatten(1, 2)
        moved = flat if self.slot_of_node is None else Move.apply(flat, self.slot_of_node, self.node_of_slot)
        return moved  # type: ignore[return-value]

    def groups(self, x: Tensor) -> Tensor:
        """Slots [B, G, M, F...] without the start node, by group: [B, G, N, K, F...]."""
        B, G, N = self.masked.shape
        return x[:, :, int(self.start) :].reshape(B, G, N, self.candidates, *x.shape[3:])

    def remember(self, name: str, make: Callable[[], Any]) -> Any:
        """Something derived from this layout, such as an attention mask: made once, used by every layer."""
        if name not in self.__dict__:  # where cached properties are kept too
            self.__dict__[name] = make()
        return self.__dict__[name]

    @cached_property
    def collapsed(self) -> "Nodes":
        """The same blocks before expansion: one node per position, as BD3LM has them."""
        return _one_node_each(self.masked, self.first, False)


def _active(masked: Tensor, candidates: int) -> Tensor:
    if candidates == 1:
        return torch.ones_like(masked)[..., None]
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
    return Nodes(masked, first, candidates, start, *compact(exists, padded), sizes)


def _one_node_each(masked: Tensor, first: Tensor, start: bool) -> Nodes:
    """With one candidate every slot is a node; on CUDA their number is padded to the grid of tiles."""
    B, G, N = masked.shape
    count = G * (int(start) + N)
    if G == 1 or not masked.is_cuda or count % TILE == 0:
        return Nodes(masked, first, 1, start, None, None)
    slot = torch.arange(count, device=masked.device).expand(B, -1)
    return Nodes(masked, first, 1, start, slot, F.pad(slot, (0, -count % TILE), value=-1))


def expand(x: Tensor, embedding: Tensor, start: Tensor, nodes: Nodes) -> Tensor:
    """Split masked positions into K nodes and add the start nodes: collapsed [B, G·N, F] → [B, C, F].

    Candidate k adds row k of `embedding` [K, F], anchors stay as they are, every start node is `start` [F].
    """
    positions = nodes.collapsed.to_slots(x)
    if nodes.node_of_slot is not None:
        return _Expand.apply(positions.flatten(1, 2), embedding, start, nodes)  # type: ignore[return-value]
    B, G, N = nodes.masked.shape  # slots are nodes, as in decoding: this takes fewer kernels
    offset = embedding.to(x.dtype) * nodes.masked[..., None, None]
    slots = (positions[:, :, :, None] + offset).reshape(B, G, N * nodes.candidates, -1)
    return torch.cat([start.to(x.dtype).expand(B, G, 1, -1), slots], 2).flatten(1, 2)


class _Expand(torch.autograd.Function):
    """Straight from positions to packed nodes: in separate steps torch would write and read the slots, a
    third of them empty, four times, and again for the gradient."""

    @staticmethod
    def forward(ctx, x: Tensor, embedding: Tensor, start: Tensor, nodes: Nodes) -> Tensor:
        ctx.nodes = nodes
        rows = torch.cat([embedding, start[None], torch.zeros_like(start)[None]]).to(x.dtype)
        nothing = nodes.candidates + 1
        which = torch.where(nodes.is_candidate, nodes.candidate, nothing)
        which = which.masked_fill(nodes.is_start, nodes.candidates)
        return take(x, nodes.group) + F.embedding(which, rows)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        nodes = ctx.nodes
        slots = nodes.to_slots(grads[0])
        groups, masked = nodes.groups(slots), nodes.masked.flatten(0, 1).to(slots.dtype)
        # Block by block, because between the groups of two blocks stands a start node.
        to_embedding = (masked[:, None] @ groups.flatten(0, 1).flatten(2)).sum(0).view(groups.shape[3:])
        return groups.sum(3).flatten(1, 2), to_embedding, slots[:, :, 0].sum((0, 1)), None

"""What the device knows of the rows in work: their texts, the block each is working on, and their settings.

All of it changes in place and nothing waits for the device, so that what is done here can be captured
(`engine`).

S slots, n rows of a call, N block size (MDLM: the longest window), L positions.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial

import torch
from torch import Tensor

from dadlm.decode.batched_settings import BatchedSettings, Features
from dadlm.decode.request import Row
from dadlm.decode.samplers import SAMPLERS, Block
from dadlm.decode.settings import DecodeSettings
from dadlm.model import Model

LAST_TOKENS = 16
"""Of an AR model's text that `advance` reports: so many tokens may go by before somebody looks."""


class State:
    def __init__(self, model: Model, slots: int, positions: int, length: int, device: torch.device) -> None:
        """`positions` that texts may have; `length` >= positions + N bounds what may be addressed."""
        config, self.slots, self.positions = model.config, slots, positions
        self.end_ids = model.end_ids
        self.is_window = config.family == "mdlm"
        self.N = positions if self.is_window else config.block
        number = partial(torch.zeros, device=device, dtype=torch.int64)
        flag = partial(torch.zeros, device=device, dtype=torch.bool)
        self.text, self.open = number(slots, length), flag(slots, length)
        self.first, self.length, self.end = number(slots), number(slots), number(slots)
        """Of the block in work (or the next one), of the text, and behind its last open position."""
        self.steps, self.has_gaps = number(slots), flag(slots)
        self.busy, self.finished = flag(slots), flag(slots)
        self.forward_passes = number(slots)
        N = self.N
        self.block = Block(
            ids=number(slots, N),
            masked=flag(slots, N),
            first=number(slots),
            number=number(slots),
            step=number(slots),
            plan=number(slots, N),
            seed=number(slots),
            in_window=flag(slots, N),
            wanted=flag(slots, N),
            ends=flag(slots, N),
        )
        self.settings = BatchedSettings.of([DecodeSettings()] * slots, device)
        self.offsets = torch.arange(N, device=device), torch.arange(-LAST_TOKENS, 1, device=device)
        """Of the positions of a block from its first, and of an AR model's last tokens."""
        self.rest(slice(0, slots))

    def tensors(self) -> list[Tensor]:
        """Everything, a slot along the first dimension of each."""
        own = [x for x in vars(self).values() if isinstance(x, Tensor)]
        parts = [getattr(part, f.name) for part in (self.block, self.settings) for f in fields(part)]
        return own + parts

    def copy_from(self, other: "State") -> None:
        """Take over the rows of a smaller state."""
        for mine, theirs in zip(self.tensors(), other.tensors(), strict=True):
            mine[: len(theirs)] = 0
            mine[tuple(slice(0, size) for size in theirs.shape)] = theirs

    # --- rows come and go

    def put(self, slots: Sequence[int], rows: Sequence[Row]) -> None:
        """Lay down rows that have joined; their blocks begin when the text before them has been read."""
        if not rows:
            return
        device, width = self.text.device, max(len(row.ids) for row in rows)
        own = (self.first, self.length, self.end, self.steps, self.has_gaps, self.block.seed)
        own += (self.forward_passes,)
        columns = []
        for slot, row in zip(slots, rows, strict=True):
            facts = (row.first, row.length, row.end, row.steps, bool(row.gaps), row.seed, row.forward_passes)
            pad = width - len(row.ids)
            columns.append([slot, *facts, *row.ids, *[0] * pad, *row.open, *[True] * pad])
        given = torch.tensor(columns).to(device)
        slot = given[:, 0]
        for column, x in enumerate(own, 1):
            x[slot] = given[:, column].to(x.dtype)
        text, open_ = given[:, 8:].chunk(2, 1)
        self.text[slot, :width], self.open[slot, :width] = text, open_.bool()
        self.finished[slot] = False
        settings = BatchedSettings.of([row.settings for row in rows], device)
        for field in fields(settings):
            getattr(self.settings, field.name)[slot] = getattr(settings, field.name)
        self.rest(slot)

    def move(self, source: Tensor, target: Tensor) -> None:
        for x in self.tensors():
            x[target] = x[source]

    def rest(self, slots: slice | Tensor) -> None:
        """Slots with nothing to decide. What AR writes for them, at position 0, is what stands there
        anyway."""
        self.busy[slots] = False
        self.block.masked[slots] = False
        self.block.in_window[slots] = True
        self.block.first[slots] = 1

    # --- blocks

    def blocks(self, rows: slice, width: int) -> Block:
        """The blocks of some rows, of which the first `width` positions are looked at."""
        own = {field.name: getattr(self.block, field.name)[rows] for field in fields(Block)}
        return Block(**{name: x[:, :width] if x.dim() == 2 else x for name, x in own.items()})

    def copied_blocks(self, rows: slice, width: int) -> Block:
        """The same, of which nothing changes that a step or the next block would change."""
        block = self.blocks(rows, width)
        first, number, step = torch.stack([block.first, block.number, block.step])  # one launch
        ids, masked = block.ids.clone(), block.masked.clone()
        return replace(block, ids=ids, masked=masked, first=first, number=number, step=step)

    def update(self, rows: slice, after: Block) -> None:
        """Take over what a denoising step has changed."""
        width = after.ids.shape[1]
        self.block.ids[rows, :width] = after.ids
        self.block.masked[rows, :width] = after.masked
        self.block.step[rows] = after.step

    def begin(self, rows: slice, which: Tensor, features: Features) -> None:
        """Begin the blocks at `first` of the rows `which` [n]; known tokens in them are anchors."""
        first = self.first[rows]
        position, number = first[:, None] + self.offsets[0], first // self.N
        wanted = position < self.length[rows, None]
        masked = self.open[rows].gather(1, position)
        new = {"first": first, "number": number, "wanted": wanted}
        if self.is_window:  # other families denoise their last block to its end and cut the text
            masked, new["in_window"] = masked & wanted, wanted
        new["ids"], new["masked"] = self.text[rows].gather(1, position), masked
        new["ends"] = masked & ~self.has_gaps[rows, None] if features.gaps else masked
        if (plan := self._plan(number, rows, features)) is not None:
            new["plan"] = plan
        for name, here in new.items():
            there = getattr(self.block, name)[rows]
            torch.where(which if here.dim() == 1 else which[:, None], here, there, out=there)
        self.block.step[rows].masked_fill_(which, 0)
        self.busy[rows].logical_or_(which)

    def _plan(self, number: Tensor, rows: slice, features: Features) -> Tensor | None:
        plan, seed = None, self.block.seed[rows]
        for name in features.samplers:
            drawn = SAMPLERS[name].begin(seed, number, self.steps[rows], self.N, features.most_steps)
            if plan is not None and drawn is not None:
                own = self.settings.sampler[rows] == list(SAMPLERS).index(name)
                drawn = torch.where(own[:, None], drawn, plan)
            plan = plan if drawn is None else drawn
        return plan

    def advance(self, rows: slice, features: Features) -> Tensor:
        """Commit the blocks that are decided and begin the ones that follow them.

        Returns [n, 3 + ...]: whether each row is finished, where it stands, its forward passes, and its
        committed block (of an AR model, its last tokens). A block that does not follow directly, in a text
        with gaps, is begun when the text before it has been read.
        """
        first, text, block_ids = self.first[rows], self.text[rows], self.block.ids[rows]
        position, following = first[:, None] + self.offsets[0], first + self.N
        done = self.busy[rows] & ~self.block.masked[rows].any(1)
        text.scatter_(1, position, torch.where(done[:, None], block_ids, text.gather(1, position)))
        is_end = block_ids == self.end_ids[0]
        for turn_end in self.end_ids[1:]:
            is_end = is_end | (block_ids == turn_end)
        is_end = is_end & self.block.ends[rows] & self.block.wanted[rows]
        over = done & (is_end.any(1) | (following >= self.end[rows]))
        begins = goes_on = done & ~over
        if features.gaps and not self.is_window:
            later = self._next_open(rows)
            begins, following = goes_on & (later == following), later
        torch.where(goes_on, following, first, out=first)
        self.finished[rows].logical_or_(over)
        self.busy[rows].masked_fill_(done, False)
        if self.N == 1:
            block_ids = text.gather(1, (first[:, None] + self.offsets[1]).clamp(min=0))
        facts = (self.finished[rows, None].long(), first[:, None], self.forward_passes[rows, None])
        news = torch.cat([*facts, block_ids], 1)
        self.begin(rows, begins, features)
        return news

    def _next_open(self, rows: slice) -> Tensor:
        """[n]: the first position of the next block with something open."""
        blocks = self.positions // self.N
        is_open = self.open[rows, : blocks * self.N].view(-1, blocks, self.N).any(2)
        index = torch.arange(blocks, device=is_open.device)
        later = is_open & (index > self.first[rows, None] // self.N)
        return torch.where(later, index, blocks).amin(1) * self.N

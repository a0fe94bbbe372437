"""The rows in work in the slots of one cache: who lies where, and what of their texts has been read.

Rows lie in the first slots without holes. The device hears of those who come and go at the next `arrange`,
for all of them at once: launching an operation takes as long as computing dozens of rows.

S slots of a pass, n rows, N block size.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from dadlm.decode.batched_settings import Features
from dadlm.decode.cache import Cache, padded_length
from dadlm.decode.request import Row
from dadlm.decode.state import State
from dadlm.model import Context, Model
from dadlm.model.capture import Graphs

# Tokens of prompts that are read in one step: a long one must not keep rows in work waiting.
_READ, _READ_CUDA, _READ_ALONE = 512, 2048, 1 << 15
ONCE_PER_BLOCK = 3
"""Launches of what is done once in a block before it is captured: a capture takes as long as several of
them."""


class Slots:
    """State and cache of the rows of an engine (see there for `lockstep` and `cached`)."""

    def __init__(self, lockstep: bool, cached: bool, graphs: Graphs) -> None:
        self.lockstep, self.cached, self.graphs = lockstep, cached, graphs
        self.rows: list[Row | None] = []
        """By slot; None: nobody any more."""
        self.features: Features
        self.memory: tuple[State, Cache | None] | None = None
        self.make_cache: Callable[[Model, int, int], Cache] = Cache
        self._buffers: dict[int, Tensor] = {}

    @property
    def state(self) -> State:
        assert self.memory is not None
        return self.memory[0]

    @property
    def cache(self) -> Cache | None:
        return None if self.memory is None else self.memory[1]

    def release(self) -> None:
        self.memory, self.rows = None, []
        self._buffers.clear()

    @torch.inference_mode()
    def reserve(self, model: Model, slots: int, positions: int) -> None:
        """Make room for so many rows of so many positions; rows that are there stay."""
        old, config = None if self.memory is None else self.state, model.config
        if old is not None and old.slots >= slots and old.positions >= positions:
            return
        self.graphs.clear()
        self._buffers.clear()
        if old is not None and any(self.rows):
            slots, positions = max(slots, old.slots), max(positions, old.positions)
        else:  # what earlier rows needed is given back first
            old = self.memory = None
        if self.graphs.enabled or not self.lockstep:  # few sizes: each has its graphs, and rows are copied
            positions = min(config.context, 1 << (positions - 1).bit_length())
        grain = 1 if config.family == "mdlm" else config.block
        positions = -(-positions // grain) * grain
        state = State(model, slots, positions, padded_length(model, positions), model.device)
        cache = (
            None if config.family == "mdlm" or not self.cached else self.make_cache(model, slots, positions)
        )
        if old is not None:
            state.copy_from(old)
            if cache is not None and self.cache is not None:
                cache.copy_from(self.cache)
        self.memory = state, cache

    # --- placement

    def whole(self) -> slice:
        """The slots that take part in a pass: with graphs one of few numbers of them."""
        count = len(self.rows)
        if self.graphs.enabled and not self.lockstep:
            count = min(self.state.slots, 1 << (count - 1).bit_length())
        return slice(0, count)

    def of(self, row: Row) -> slice:
        slot = self.rows.index(row)
        return slice(slot, slot + 1)

    def width(self, rows: slice) -> int:
        """Positions of a block that are looked at: windows may be shorter than the longest there was."""
        if not self.state.is_window:
            return self.state.N
        longest = max(row.block for row in self.rows[rows] if row)
        return min(self.state.N, 1 << (longest - 1).bit_length()) if self.graphs.enabled else longest

    def arrange(self, model: Model, rows: list[Row]) -> None:
        """Bring the slots in line with `rows`: all who came, moved or left since the last time, at once.

        Rows that move do so to where another has left, from behind the last of them (`Engine.remove`).
        """
        if self.rows == rows:
            return
        was = {row: slot for slot, row in enumerate(self.rows) if row}
        new = [row for row in rows if row not in was]
        if self.lockstep and self.graphs.enabled and not new and 2 * len(rows) > len(self.rows):
            return  # finished rows go along idle until dropping them halves the batch
        slots = len(rows)
        if not self.lockstep and (self.memory is None or self.state.slots < slots):
            slots = 1 << (slots - 1).bit_length()  # rows come one by one: not a copy for each
        self.reserve(model, slots, max(len(row.ids) for row in rows))
        moves = [(row, was[row], to) for to, row in enumerate(rows) if was.get(row, to) != to]
        if moves:
            source, target = torch.tensor([move[1:] for move in moves], device=model.device).unbind(1)
            self.state.move(source, target)
            if self.cache is not None:
                for row, here, to in moves:
                    self.cache.move(here, to, row.written)
        self.state.put([slot for slot, row in enumerate(rows) if row not in was], new)
        left = [*range(len(rows), len(self.rows))]
        self.state.rest(torch.tensor(left, dtype=torch.int64, device=model.device))
        self.rows = [*rows]
        steps, gaps = max(row.steps for row in rows), any(row.gaps for row in rows)
        self.features = Features.of([row.settings for row in rows], model.config, steps, gaps)

    # --- reading

    def read_at_once(self, model: Model) -> int:
        """Tokens of prompts that one step reads."""
        tokens = _READ_CUDA if model.device.type == "cuda" else _READ
        if self.lockstep and not any(row and row.busy for row in self.rows):
            tokens = _READ_ALONE
        return max(model.config.block, tokens // model.config.block * model.config.block)

    def read(self, model: Model, rows: list[Row]) -> None:
        """Write keys and values of what the next blocks of rows must see, of prompts as much as a step
        allows."""
        if finished := [row for row in rows if row.busy and row.to_write]:
            self._write_blocks(model, finished)
        at_once = self.read_at_once(model)
        waiting = [row for row in rows if row.to_write]
        while waiting:
            chosen, width = [], 0
            for row in waiting:  # in their order, as far as their padded texts fit
                width = max(width, min(row.to_write, at_once))
                if chosen and (len(chosen) + 1) * width > at_once:
                    break
                chosen.append(row)
            self._read_prompts(model, chosen, at_once)
            waiting = [row for row in waiting if row.to_write] if self.lockstep else []

    def _read_prompts(self, model: Model, rows: list[Row], at_once: int) -> None:
        takes = [min(row.to_write, at_once) for row in rows]
        columns = [[self.rows.index(row), row.written, n] for row, n in zip(rows, takes, strict=True)]
        slot, start, take = torch.tensor(columns, device=model.device).unbind(1)
        used = max(row.written + count for row, count in zip(rows, takes, strict=True))
        every = [column[0] for column in columns] == [*range(len(self.rows))]
        where = slice(0, len(rows)) if every else slot
        self._read(model, where, start, take, max(takes), used)
        for row, count in zip(rows, takes, strict=True):
            row.mark_written(count)

    def _write_blocks(self, model: Model, rows: list[Row]) -> None:
        """Write the keys and values of the blocks that these rows have just finished."""
        slots, used = [self.rows.index(row) for row in rows], max(row.first for row in rows)
        if len(rows) == sum(row is not None and not row.finished for row in self.rows):
            where = self.whole()  # without copying: who is not concerned writes what stands there already
            self.graphs(("write", where.stop), partial(self._write, model, where, used), ONCE_PER_BLOCK)
        elif self.graphs.enabled:
            slots += [slots[0]] * ((1 << (len(slots) - 1).bit_length()) - len(slots))
            if len(slots) not in self._buffers:
                self._buffers[len(slots)] = torch.tensor(slots, device=model.device)
            static = self._buffers[len(slots)].copy_(torch.tensor(slots))
            self.graphs(
                ("write", len(slots), "of all"), partial(self._write, model, static, used), ONCE_PER_BLOCK
            )
        else:
            self._write(model, torch.tensor(slots, device=model.device), used)
        for row in rows:
            row.mark_written(row.to_write)

    def _write(self, model: Model, slots: slice | Tensor, used: int) -> None:
        N, first = self.state.N, self.state.first[slots]
        self._read(model, slots, (first - N).clamp(min=0), torch.full_like(first, N), N, used)

    def _read(
        self, model: Model, slots: slice | Tensor, start: Tensor, take: Tensor, width: int, used: int
    ) -> None:
        if self.cache is not None:
            read_text(model, self.cache, self.state.text, slots, start, take, width, used)

    def context(self, model: Model, rows: slice, ahead: int) -> Context | None:
        """What blocks see of the text before them; `ahead`: tokens since `Row.first` was looked at."""
        if self.cache is not None:
            used = max((row.first for row in self.rows[rows] if row), default=1) + ahead
            return self.cache.view(rows, self.state.text, used)
        if self.state.is_window or model.config.family == "ar":
            return None
        context = Context()
        model.read(self.state.text[rows, : self.state.positions], context, only_context=True)
        return context


def read_text(
    model: Model,
    cache: Cache,
    text: Tensor,
    slots: slice | Tensor,
    start: Tensor,
    take: Tensor,
    width: int,
    used: int,
) -> None:
    """Read `take` tokens [n] of the texts in some slots from `start` [n] on; padding goes to the spare
    block."""
    offset = torch.arange(width, device=start.device)
    position = torch.where(offset < take[:, None], start[:, None] + offset, cache.spare)
    ids = text[slots].gather(1, position)
    model.read(ids, cache.view(slots, text, used), position=position, only_context=True)

"""The rows in work on the device: they join and leave between denoising steps; a step is one forward pass.

Rows lie in the first slots without holes: when one leaves, the last takes its place. A row that has to read
text before its next block (its prompt, or the block it has finished) takes part in a step without anything to
decide. On CUDA every step and every writing of finished blocks is a captured graph for 1, 2, 4, … slots;
on the CPU the same code runs with as many slots as there are rows. What is done outside the graphs, but for
moving caches, is done for all rows at once: launching an operation takes as long as computing dozens of rows.

S slots, n rows, N block size (the context for MDLM).
"""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dadlm.decode import remask
from dadlm.decode.block import Block, Step
from dadlm.decode.engine import Act
from dadlm.decode.generate import ready_to_decode
from dadlm.decode.mixed import Features, Mixed, denoise_mixed
from dadlm.decode.predict import Predictor, WindowPredictor
from dadlm.decode.settings import DecodeSettings
from dadlm.model import Model
from dadlm.serve.slots import BlockPart, CausalPart, Slots
from dadlm.serve.task import Task

# Of prompts, in one step: a long one must not keep the others waiting.
_TOKENS_READ = 512
_TOKENS_READ_CUDA = 2048  # a step of 64 rows of DA-DLM has more nodes than that


class Batch:
    """At most `slots` tasks side by side. Of those who come and go the device hears with the next act."""

    @torch.inference_mode()
    def __init__(self, model: Model, slots: int, graphs: bool | None = None) -> None:
        self.model, self.slots, self.tasks = model, slots, list[Task]()
        self.graphs = model.device.type == "cuda" if graphs is None else graphs
        config, device = model.config, model.device
        self.is_window, self.N = config.family == "mdlm", config.block
        tokens = _TOKENS_READ_CUDA if device.type == "cuda" else _TOKENS_READ
        self.read_at_once = max(self.N, tokens // self.N * self.N)
        self.cache = None if self.is_window else Slots(model, slots)  # may fail: before anything is opened
        self._open = ExitStack()
        self._open.enter_context(ready_to_decode(model))
        number = partial(torch.zeros, device=device, dtype=torch.int64)
        flag = partial(torch.zeros, device=device, dtype=torch.bool)
        self.block = Block(
            ids=number(slots, self.N),
            masked=flag(slots, self.N),
            first=number(slots),
            number=number(slots),
            step=number(slots),
            reveal=number(slots, self.N),
            seed=number(slots),
            inside=flag(slots, self.N),
            ends=flag(slots, self.N),
        )
        self.last = number(slots)  # token before the block (AR)
        self.length = number(slots)  # of the window (MDLM)
        self.mixed = Mixed.of([DecodeSettings()] * slots, device)
        self._held = list[Task | None]()  # whose rows lie in the slots, until `_arrange`
        self._rest(slice(0, slots))
        pool = torch.cuda.graph_pool_handle() if self.graphs and device.type == "cuda" else None
        graphs = self.graphs  # not self: a circle would keep the cache until gc finds it
        self._acts: dict[Any, Act[Any]] = defaultdict(lambda: Act(graphs, pool))
        self._buffers: dict[int, Tensor] = {}

    def close(self) -> None:
        """Let go of tasks, cache, what the model keeps for decoding and the graphs that rely on it."""
        self.tasks.clear()
        self._held.clear()
        self.cache = None
        self._acts.clear()
        self._open.close()

    # --- rows come and go

    def add(self, task: Task) -> None:
        self.tasks.append(task)

    def remove(self, task: Task) -> None:
        slot, last = self.tasks.index(task), self.tasks.pop()
        if last is not task:
            self.tasks[slot] = last
        self._held = [None if held is task else held for held in self._held]

    def _arrange(self) -> None:
        """Bring the slots in line with `tasks`: all who came, moved or left since the last act, at once."""
        if self._held == self.tasks:
            return
        was = {task: slot for slot, task in enumerate(self._held) if task}
        moves = [(task, was[task], to) for to, task in enumerate(self.tasks) if was.get(task, to) != to]
        new = [slot for slot, task in enumerate(self.tasks) if task not in was]
        changed, device = new + [to for _, _, to in moves], self.model.device
        if changed:
            settings = [self.tasks[slot].settings for slot in changed]
            self.mixed.put(torch.tensor(changed, device=device), Mixed.of(settings, device))
        if moves:  # only the last row moves, and to where one has left: no slot is both left and entered
            source, target = torch.tensor([move[1:] for move in moves], device=device).unbind(1)
            for x in [getattr(self.block, field.name) for field in fields(Block)] + [self.last, self.length]:
                x[target] = x[source]
            if self.cache is not None:
                for task, here, to in moves:
                    self.cache.move(here, to, task.written)
        idle = [*new, *range(len(self.tasks), len(self._held))]
        self._rest(torch.tensor(idle, dtype=torch.int64, device=device))
        self._held = [*self.tasks]

    def _rest(self, rows: slice | Tensor) -> None:
        """Slots with nothing to decide. What AR writes for them anyway is written again before it is seen."""
        self.block.masked[rows] = False
        self.block.inside[rows] = True
        self.block.first[rows] = 1
        self.length[rows] = 1

    # --- reading

    @property
    def unread(self) -> int:
        """Tokens of long texts that wait to be read."""
        return sum(task.to_write for task in self.tasks if not task.ready and task.to_write > self.N)

    @torch.inference_mode()
    def write(self, tasks: Sequence[Task]) -> None:
        """Read what the next blocks of these tasks must see, as much as one step allows, and begin them."""
        self._arrange()
        waiting = [task for task in tasks if not task.ready]
        self._read([task for task in waiting if 0 < task.to_write <= self.N])
        self._read(self._long(waiting))
        self._begin([task for task in waiting if not task.to_write])

    def _long(self, waiting: Sequence[Task]) -> list[Task]:
        """Those who came first, as far as their padded texts fit."""
        chosen, width = [], 0
        for task in sorted((t for t in waiting if t.to_write), key=lambda task: task.submitted):
            width = max(width, min(task.to_write, self.read_at_once))
            if chosen and (len(chosen) + 1) * width > self.read_at_once:
                break
            chosen.append(task)
        return chosen

    def _read(self, tasks: list[Task]) -> None:
        """Write keys and values of the next texts of these tasks."""
        if not tasks or self.cache is None:
            return
        spare = self.model.config.context
        takes = [min(task.to_write, self.read_at_once) for task in tasks]
        width = max(takes)
        rows = []
        for task, take in zip(tasks, takes, strict=True):
            start, pad = task.written, width - take
            ids = task.ids[start : start + take] + [0] * pad
            rows.append([self.tasks.index(task), *ids, *range(start, start + take), *[spare] * pad])
        used = max(task.written + take for task, take in zip(tasks, takes, strict=True))
        if self.graphs and width == self.N:  # finished blocks, in few shapes
            rows += [[rows[0][0], *[0] * width, *[spare] * width]] * (self._shape(len(rows)) - len(rows))
            given = torch.tensor(rows)
            static = self._buffers.setdefault(len(rows), given.to(self.model.device))
            static.copy_(given)
            self._acts["write", len(rows)](partial(self._forward, static, used))
        else:
            self._forward(torch.tensor(rows, device=self.model.device), used)
        for task, take in zip(tasks, takes, strict=True):
            task.written += take
            if self.model.config.family == "ar" and task.to_write:
                # Steps until all is read write where the next part will be written anyway.
                self.block.first[self.tasks.index(task)] = task.written + 1

    def _forward(self, rows: Tensor, used: int) -> None:
        """rows [n, 1 + 2W]: slot, tokens, positions."""
        assert self.cache is not None
        slot, (ids, position) = rows[:, 0], rows[:, 1:].chunk(2, 1)
        with self._exact():
            self.model.read(ids, self.cache.part(slot, used), position=position, only_context=True)

    # --- blocks

    def _begin(self, tasks: list[Task]) -> None:
        """Put the next blocks of these tasks to work."""
        if not tasks:
            return
        columns = []
        for task in tasks:
            here = slice(task.first, task.first + task.block)
            known = task.ids[here]
            pad = [0] * (self.N - len(known))
            number = 0 if self.is_window else task.first // self.N
            inside = [1] * len(known) + pad
            facts = (self.tasks.index(task), task.first, number, task.row.seed, task.steps, task.row.length)
            facts += (task.ids[task.first - 1], int(not task.row.gaps))
            columns.append([*facts, *known, *pad, *map(int, task.open[here]), *pad, *inside])
        given = torch.tensor(columns).to(self.model.device)
        slot, first, number, seed, steps, length, last, completes = given[:, :8].unbind(1)
        ids, masked, inside = given[:, 8:].chunk(3, 1)
        reveal = torch.zeros_like(ids)
        if any(task.settings.sampler == "random" for task in tasks):
            longest = max(task.steps for task in tasks)
            reveal = remask.reveal_steps(seed, number, steps, self.N, longest)
        masked, inside, ends = masked.bool(), inside.bool(), (masked * completes[:, None]).bool()
        new = Block(ids, masked, first, number, torch.zeros_like(first), reveal, seed, inside, ends)
        for name in (field.name for field in fields(Block)):
            getattr(self.block, name)[slot] = getattr(new, name)
        self.last[slot], self.length[slot] = last, length
        for task in tasks:
            task.ready = True

    @torch.inference_mode()
    def step(self, tasks: Sequence[Task]) -> tuple[Step, dict[int, Task]] | None:
        """One forward pass for all tasks, or for a single one; with the tasks that decided, by their row."""
        ready = {row: task for row, task in enumerate(tasks) if task.ready}
        if not ready:
            return None
        self._arrange()
        features = Features.of([task.settings for task in ready.values()])
        if len(tasks) == 1 and len(self.tasks) > 1:
            slot = self.tasks.index(tasks[0])
            step = self._step(slice(slot, slot + 1), features)
        else:
            S = self._shape(len(self.tasks))
            step = self._acts[S, features](partial(self._step, slice(0, S), features))
        for task in ready.values():
            task.passes_of_block += 1
            if self.model.config.family == "ar":
                task.written = task.first  # the pass has read the token before
        return step, ready

    def _step(self, rows: slice, features: Features) -> Step:
        wide = slice(0, self._width(rows))
        own = {field.name: getattr(self.block, field.name)[rows] for field in fields(Block)}
        block = Block(**{name: x[:, wide] if x.dim() == 2 else x for name, x in own.items()})
        # What a step saw must not change before it was looked at.
        block = replace(block, ids=block.ids.clone(), masked=block.masked.clone(), step=block.step.clone())
        with self._exact():
            predictor = self._predictor(rows)
            after, step = denoise_mixed(
                self.model, predictor, block, self.mixed[rows], features, fixed=self.graphs
            )
        self.block.ids[rows, wide] = after.ids
        self.block.masked[rows, wide] = after.masked
        self.block.step[rows] = after.step
        return step

    def _width(self, rows: slice) -> int:
        """How much of the block is looked at: MDLM's windows may be shorter than the context."""
        if not self.is_window or self.graphs:
            return self.N
        return max(task.block for task in self.tasks[rows])

    def _predictor(self, rows: slice) -> Predictor:
        if self.cache is None:
            return WindowPredictor(self.model, self.length[rows])
        part = self.cache.part(rows, max(task.first for task in self.tasks[rows]))
        if self.model.config.family == "ar":
            return CausalPart(self.model, part, self.last[rows])
        return BlockPart(self.model, part)

    @torch.inference_mode()
    def finished(self) -> list[tuple[Task, list[int]]]:
        """Tasks whose block has nothing open any more, and its tokens. Asks the device, once."""
        self._arrange()
        n = len(self.tasks)
        open_ = self.block.masked[:n].any(1, keepdim=True)
        rows = torch.cat([open_, self.block.ids[:n]], 1).tolist()
        both = zip(self.tasks, rows, strict=True)
        return [(task, row[1 : 1 + task.block]) for task, row in both if task.ready and not row[0]]

    def _shape(self, rows: int) -> int:
        """Slots of a pass: with graphs one of few."""
        return min(self.slots, 1 << (rows - 1).bit_length()) if self.graphs else rows

    def _exact(self) -> torch.autocast:
        return torch.autocast(self.model.device.type, enabled=False)

"""The decoding engine: many texts side by side, one forward pass for all of them at a time.

`Engine.step` is admit → denoise → commit: rows join and read the text before their blocks, one pass decides
some tokens of each, and blocks that are decided are handed out. Everything that decodes submits requests
here: `generate`, `stream`, `fill_gaps`, evaluation and the server.

On CUDA a pass, and what is done when blocks end, is launched kernel by kernel at first, then captured as a
graph and replayed: a step is a few hundred small kernels, and launching them takes many times longer than
running them. Lengths are read on the device, so one graph serves the whole text.

S slots of a pass, N block size.
"""

import weakref
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from dadlm.decode.batched_settings import Features
from dadlm.decode.constants import Constants
from dadlm.decode.events import CycleEvent
from dadlm.decode.pass_plan import PassPlan
from dadlm.decode.predict import predict
from dadlm.decode.request import Request, Row
from dadlm.decode.slots import ONCE_PER_BLOCK, Slots
from dadlm.decode.state import LAST_TOKENS
from dadlm.decode.step import Step, denoise_step
from dadlm.model import Model, eval_mode
from dadlm.model.capture import Graphs

_MOST_GRAPHS = 96  # kept between calls; with more, all are captured anew


@dataclass(frozen=True)
class Committed:
    """Tokens that a row has just finished; `row.finished` says whether they were the last of its text."""

    row: Row
    positions: list[int]
    """Where they stand in `row.ids`, in order."""


@dataclass(frozen=True)
class StepResult:
    step: Step | None
    """What the forward pass did, valid until the next one; None if no row had anything to decide."""
    rows: dict[int, Row]
    """The rows that took part, by their index in `step`."""
    committed: list[Committed]
    drafts: Mapping[Row, Callable[[], CycleEvent]] = field(default_factory=dict)
    """Mode lossless: what makes the event of a row's cycle."""


class Engine:
    """See the module's text.

    In `lockstep` all rows begin their blocks together and wait for the slowest: best for many texts that
    nobody reads before they are finished, since keys and values are then written for all of them at once and
    the device is asked once in a block. Otherwise rows join at any step, and a block is committed as soon as
    it is decided. `cached=False` is the slow twin: it reads the whole text anew for every pass.
    """

    def __init__(
        self, model: Model, *, lockstep: bool = True, cached: bool = True, graphs: bool | None = None
    ) -> None:
        self._model = weakref.ref(model)  # the engine stays with its model, and must not keep it alive
        self.lockstep, self.device, self.rows = lockstep, model.device, list[Row]()
        enabled = (self.device.type == "cuda" and cached) if graphs is None else graphs
        self.graphs = Graphs(enabled, self.device)
        self.slots = Slots(lockstep, cached, self.graphs)
        self._constants = Constants()
        self._plan = PassPlan(self.slots)
        self._ready: dict[int, Row] = {}
        """The rows that a pass can decide something of, by their index in it."""
        self._begun = False  # lockstep: the rows are inside their blocks, and nobody has looked since
        self._unseen, self._most_unseen = 0, 1  # lockstep: blocks since `_look`, and how many there may be

    @property
    def model(self) -> Model:
        model = self._model()
        assert model is not None, "an engine is used while its model is there"
        return model

    def add(self, request: Request | Row) -> Row:
        """Let a request, or a row that was made of one before, join at the next step."""
        row = request if isinstance(request, Row) else Row(self.model, request)
        if row.settings.shortlist is not None:
            self.prepare_shortlists()
        if not self.rows and not self.slots.rows:
            self._start()
        self.rows.append(row)
        return row

    def prepare_shortlists(self) -> None:
        """Find what rows with a shortlist need: V² scores, so that a server does it before there are rows."""
        if self._constants.keep_successors(self.model):
            self.graphs.clear()

    def remove(self, row: Row) -> None:
        """Let a row go. It may join again, and does its block again then."""
        assert not self.lockstep, "rows in lockstep go through their texts together"
        self._drop(row)
        self.slots.rows = [None if held is row else held for held in self.slots.rows]
        row.rewind()
        if not self.rows:
            self.clear()

    def _drop(self, row: Row) -> None:
        """The last row takes the place of one that leaves."""
        slot, last = self.rows.index(row), self.rows.pop()
        if last is not row:
            self.rows[slot] = last

    @torch.inference_mode()
    def clear(self) -> None:
        """Let all rows go. Where graphs are captured, they and their memory stay for the next ones."""
        self.rows, self.slots.rows, self._ready = [], [], {}
        self._begun, self._unseen, self._most_unseen = False, 0, 1
        self._constants.release(self.model)
        if not self.graphs.enabled:
            self.slots.release()
        elif self.slots.memory is not None:
            self.slots.state.rest(slice(0, self.slots.state.slots))

    def reserve(self, rows: int) -> None:
        """Take the memory for so many rows of any length now."""
        self.slots.reserve(self.model, rows, self.model.config.context)

    @property
    def read_at_once(self) -> int:
        """Tokens of prompts that one step reads."""
        return self.slots.read_at_once(self.model)

    @property
    def tokens_to_read(self) -> int:
        """Tokens of prompts that wait to be read."""
        return sum(row.to_write for row in self.rows if not row.busy)

    def release(self) -> None:
        """Let all rows go and give all memory back, that of captured graphs included."""
        self.graphs.clear()
        self.slots.release()
        self.clear()

    @torch.inference_mode()
    def _start(self) -> None:
        """The first row comes: see whether the weights are where captured graphs look for them."""
        if self._constants.keep(self.model) or len(self.graphs.callables) > _MOST_GRAPHS:
            self.graphs.clear()
            self.slots.release()

    @torch.inference_mode()
    def step(self, only: Row | None = None) -> StepResult:
        """One forward pass of all rows, or of `only` one: admit, denoise, commit.

        Without autocast: the cache has the weights' own type. Between steps the model is the caller's.
        """
        model, kind = self.model, self.device.type
        autocast = torch.is_autocast_enabled(kind)  # to enter its absence would take longer than to ask
        with torch.autocast(kind, enabled=False) if autocast else nullcontext(), eval_mode(model):
            self._admit(model, only)
            rows = self.slots.whole() if only is None else self.slots.of(only)
            step, news = self._denoise(model, rows, only)
            took_part = {} if step is None else self._ready
            return StepResult(step, took_part, self._commit(rows, only, news))

    def _admit(self, model: Model, only: Row | None) -> None:
        """Bring new rows in, read the text before their blocks, and begin those."""
        if self.lockstep and self._begun:
            return
        self.slots.arrange(model, self.rows)
        rows = self.rows if only is None else [only]
        self.slots.read(model, rows)
        if beginning := {row for row in rows if not row.busy and not row.to_write}:
            which = torch.tensor([row in beginning for row in self.slots.rows], device=model.device)
            self.slots.state.begin(slice(0, len(which)), which, self.slots.features)
            for row in beginning:
                row.busy = True
        if self.lockstep:
            self._begun = True
            self._plan.begin()
            if self.graphs.enabled and model.config.family == "ar":  # its pass writes what it reads
                # To ask the device costs a wait: after several tokens, or when a text may be over.
                self._most_unseen = min(LAST_TOKENS, *(row.end - row.first for row in self.rows))
        held = self.slots.rows if only is None else self.slots.rows[self.slots.of(only)]
        self._ready = {i: row for i, row in enumerate(held) if row is not None and row.ready}

    def _denoise(self, model: Model, rows: slice, only: Row | None) -> tuple[Step | None, Tensor | None]:
        """One forward pass, and what `State.advance` says if that is done already."""
        capacity = self._plan.capacity() if self._ready else 0
        if capacity == 0:
            return None, None
        features, width = self.slots.features, self.slots.width(rows)
        call = partial(self._pass_and_advance, model, rows, width, features, capacity)
        used = features if self.slots.state.N == 1 else features.of_pass
        key = ("pass", rows.stop, width, used, capacity)
        step, news = call() if only else self.graphs(key, call)
        for row in self._ready.values():
            row.passes_of_block += 1
        return step, news

    def _pass_and_advance(
        self, model: Model, rows: slice, width: int, features: Features, capacity: int | None
    ) -> tuple[Step, Tensor | None]:
        """A block of one token is decided by any pass, and committed in the same graph."""
        step, state = self._pass(model, rows, width, features, capacity), self.slots.state
        return step, state.advance(rows, features) if state.N == 1 else None

    def _pass(self, model: Model, rows: slice, width: int, features: Features, capacity: int | None) -> Step:
        state = self.slots.state
        block = state.copied_blocks(rows, width)  # what a step saw must not change before it was looked at
        state.forward_passes[rows].add_(block.masked.any(1))
        context = self.slots.context(model, rows, self._unseen)
        prediction = predict(model, block, state.text[rows], context)
        after, step = denoise_step(model, prediction, block, state.settings[rows], features, capacity)
        state.update(rows, after)
        return step

    def _commit(self, rows: slice, only: Row | None, news: Tensor | None) -> list[Committed]:
        """Hand out the blocks that are decided, and let finished rows go."""
        if not self._plan.is_decided(rows, self._ready):
            return []
        if news is None:
            features = self.slots.features
            call = partial(self.slots.state.advance, rows, features)
            news = call() if only else self.graphs(("advance", rows.stop, features), call, ONCE_PER_BLOCK)
        self._unseen += 1
        if self.lockstep and self._unseen < self._most_unseen:
            return []
        self._begun, self._unseen = False, 0
        return self._look(rows, news.tolist())

    def _look(self, rows: slice, news: list[list[int]]) -> list[Committed]:
        """Learn what `State.advance` has done."""
        committed = list[Committed]()
        for row, (over, first, passes, *ids) in zip(self.slots.rows[rows], news, strict=False):
            if row is None or not row.ready or (first == row.first and not over):
                continue
            if self.slots.state.N == 1:
                ids = ids[LAST_TOKENS - (first - row.first) :]
            committed.append(Committed(row, row.commit(first, bool(over), ids, passes)))
        for row in [one.row for one in committed if one.row.finished]:
            self._drop(row)
        if not self.rows:
            self.clear()
        return committed

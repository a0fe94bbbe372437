"""The lossless mode: a block model drafts, a causal model decides; the text is the causal model's, sooner.

A cycle is draft → verify → commit. One denoising pass of the draft model says what may follow each text, a
tree of it goes through the target in one pass (`Backbone.read_tree`), and what the target agrees with is
committed, with one token of its own (`verify`). A model with a causal context is both at once: its clean
stream is the target, and the keys and values that verifying leaves are the context of the next draft.

B rows of a cycle, N block size, C nodes of a tree, L positions ahead.
"""

import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from dadlm import counter
from dadlm.decode.constants import Constants
from dadlm.decode.draft import Draft, Filter, draft_tree, look_up
from dadlm.decode.drawn import chain_shape, draw_tree, tree_shape
from dadlm.decode.engine import Committed, Engine, StepResult
from dadlm.decode.events import CycleEvent
from dadlm.decode.pace import Pace
from dadlm.decode.pair import PairCache
from dadlm.decode.predict import predict_blocks
from dadlm.decode.request import Row
from dadlm.decode.slots import read_text
from dadlm.decode.verify import Verified, cycle_uniform, decide, way_of
from dadlm.model import Model, eval_mode

Result = TypeVar("Result")
_CHAIN = 8  # tokens of a chain: the chance that more are accepted does not pay for them


class LosslessEngine(Engine):
    """An engine whose step is a cycle; `draft` None looks up. See the module's text."""

    def __init__(self, target: Model, draft: Model | None, *, lockstep: bool = True) -> None:
        super().__init__(target, lockstep=lockstep, graphs=False)
        self._draft = None if draft is None else weakref.ref(draft)
        self._is_both = draft is not None and draft.backbone is target.backbone
        self._read: weakref.WeakKeyDictionary[Row, int] = weakref.WeakKeyDictionary()
        """Tokens whose keys and values a draft model of its own has."""
        self._draft_constants = Constants()
        self.pace = Pace()
        if draft is not None and not self._is_both:
            self.slots.make_cache = lambda target, *size: PairCache(target, self._drafting(), *size)

    def drafts_with(self, draft: Model | None) -> bool:
        return self._draft is None if draft is None else self._draft is not None and self._draft() is draft

    def _drafting(self) -> Model:
        draft = None if self._draft is None else self._draft()
        assert draft is not None, "an engine is used while its models are there"
        return draft

    def remove(self, row: Row) -> None:
        super().remove(row)
        self._read.pop(row, None)

    @torch.inference_mode()
    def _start(self) -> None:
        super()._start()
        if self._draft is not None:
            self._draft_constants.keep(self._drafting())

    def clear(self) -> None:
        super().clear()
        self._read.clear()
        if self._draft is not None and (draft := self._draft()) is not None:
            self._draft_constants.release(draft)

    @torch.inference_mode()
    def step(self, only: Row | None = None) -> StepResult:
        """One cycle of all rows, or of `only` one."""
        target = self.model
        with ExitStack() as stack:
            stack.enter_context(torch.autocast(target.device.type, enabled=False))
            stack.enter_context(eval_mode(target, *([] if self._draft is None else [self._drafting()])))
            self._admit(target, only)
            self._begun = False
            ready = [row for row in self.slots.rows if row and row.ready and only in (None, row)]
            groups: dict[tuple[int | None, bool], list[Row]] = {}
            for row in ready:
                groups.setdefault(_kind(row), []).append(row)
            cycles = [(rows, *self._cycle(rows, *kind)) for kind, rows in groups.items()]
            # Only now: what one of them had committed would be lost if another failed.
            committed, drafts = list[Committed](), dict[Row, Callable[[], CycleEvent]]()
            for rows, drafted, verified in cycles:
                for i, row in enumerate(rows):
                    drafts[row] = partial(self._event, row.cycles, drafted, verified, i)
                committed += self._take(rows, drafted, verified)
            for row in [one.row for one in committed if one.row.finished]:
                self._drop(row)
            if not self.rows:
                self.clear()
            return StepResult(None, dict(enumerate(ready)), committed, drafts)

    def _event(self, number: int, drafted: Draft, verified: Verified, row: int) -> CycleEvent:
        tokens, accepted = way_of(drafted, verified, row)
        words = self.model.tokenizer
        texts = [str(one) if words is None else words.token_text(one) for one in tokens]
        return CycleEvent(number, 0, tokens, texts, accepted)

    def _cycle(self, rows: Sequence[Row], nodes: int | None, drawn: bool) -> tuple[Draft, Verified]:
        """Draft and verify, with trees of so many nodes; 0: chains; None: what has been fastest."""
        start, paced = time.perf_counter(), nodes is None
        nodes = self.pace.nodes(len(rows)) if nodes is None else nodes
        slots = [self.slots.rows.index(row) for row in rows]
        every = slots == [*range(len(self.slots.rows))]
        where = slice(0, len(slots)) if every else torch.tensor(slots, device=self.device)
        first = torch.tensor([row.first for row in rows], device=self.device)
        size = None if paced and not nodes else nodes
        drafted = self.phase("draft", lambda: self._propose(rows, where, first, size, drawn))
        verified = self.phase("verify", lambda: self._verify(where, first, drafted))
        if paced:
            new = int(verified.count.sum())
            self.pace.record(len(rows), nodes, time.perf_counter() - start, new)
        return replace(drafted, drawn_from=None, source=None), verified

    def phase(self, name: str, work: Callable[[], Result]) -> Result:
        """Do a part of a cycle; a benchmark puts one that takes the time in its place."""
        del name
        return work()

    def _take(self, rows: Sequence[Row], drafted: Draft, verified: Verified) -> list[Committed]:
        """Commit what was verified, up to what ends a text."""
        passes, committed = 1 + (drafted.tokens.shape[1] > 1 and self._draft is not None), list[Committed]()
        for row, tokens, count in zip(rows, verified.tokens.tolist(), verified.count.tolist(), strict=True):
            tokens = row.up_to_end(tokens[:count])
            over = row.ends_with(tokens[-1]) or row.first + len(tokens) >= row.end
            row.cycles += 1
            first = row.first + len(tokens) - over
            committed.append(Committed(row, row.commit(first, over, tokens, row.forward_passes + passes)))
        return committed

    # --- draft

    def _propose(
        self, rows: Sequence[Row], where: slice | Tensor, first: Tensor, nodes: int | None, drawn: bool
    ) -> Draft:
        """What may follow; None: nothing, the target goes on by itself."""
        state = self.slots.state
        last = state.text[where].gather(1, first[:, None] - 1)
        room = torch.tensor([row.end - row.first - 1 for row in rows], device=self.device)
        if nodes is None or not bool((room > 0).any()):
            return Draft.chain(last, torch.ones_like(last, dtype=torch.bool))
        if self._draft is None:
            return self._looked_up(rows, last, nodes)
        settings = state.settings[where]
        greedy = settings.cold | settings.best
        draft = self._drafting()
        length = min(draft.config.block_size - self._is_both, int(room.max()), nodes or _CHAIN)
        ahead = self._ahead(rows, where, first, length, torch.where(greedy, 1.0, settings.temperature))
        if not drawn:
            return draft_tree(ahead, last[:, 0], nodes, room)
        longest = torch.minimum(ahead.exists.sum(1), room).tolist()
        shapes = [tree_shape(nodes, most) if nodes else chain_shape(_CHAIN, most) for most in longest]
        uniform = cycle_uniform(state.block.seed[where], first, max(map(len, shapes)), counter.DRAFT)
        return draw_tree(ahead, last[:, 0], shapes, uniform, settings, greedy)

    def _ahead(
        self, rows: Sequence[Row], where: slice | Tensor, first: Tensor, length: int, temperature: Tensor
    ) -> Filter:
        """One denoising pass over the blocks in which the texts end.

        With a causal context a block may begin anywhere: it begins with the last token, whose keys and values
        are still missing. Other models know blocks at their places only.
        """
        draft, state, cache = self._drafting(), self.slots.state, self.slots.cache
        N = draft.config.block_size
        begin = first - 1 if self._is_both else first // N * N
        if isinstance(cache, PairCache):
            self._read_blocks(rows, cache)
            cache = cache.draft
        assert cache is not None
        position = begin[:, None] + torch.arange(N, device=first.device)
        ids = state.text[where].gather(1, position.clamp(max=state.text.shape[1] - 1))
        masked = position >= first[:, None]
        view = cache.view(where, state.text, max(row.first for row in rows))
        return Filter(
            draft, predict_blocks(draft, ids, masked, begin[:, None], view), masked, length, temperature
        )

    def _read_blocks(self, rows: Sequence[Row], cache: PairCache) -> None:
        """Let a draft model of its own read the blocks that are complete."""
        draft = self._drafting()
        N = draft.config.block_size
        behind = [(row, self._read.get(row, 0)) for row in rows]
        behind = [(row, read) for row, read in behind if read < row.first // N * N]
        if not behind:
            return
        columns = [[self.slots.rows.index(row), read, row.first // N * N - read] for row, read in behind]
        slot, start, take = torch.tensor(columns, device=self.device).unbind(1)
        used = max(row.first for row, _ in behind)
        width = max(column[2] for column in columns)
        read_text(draft, cache.draft, self.slots.state.text, slot, start, take, width, used)
        for row, _ in behind:
            self._read[row] = row.first // N * N
            row.cache_passes += 1

    def _looked_up(self, rows: Sequence[Row], last: Tensor, nodes: int) -> Draft:
        found = [look_up(row.ids[: row.first], min(nodes or _CHAIN, row.end - row.first - 1)) for row in rows]
        width = max(map(len, found))
        tokens = torch.tensor([one + [0] * (width - len(one)) for one in found], dtype=torch.int64)
        lengths = torch.tensor([[len(one)] for one in found], device=last.device)
        exists = torch.arange(width + 1, device=last.device) <= lengths
        return Draft.chain(torch.cat([last, tokens.to(last)], 1), exists)

    # --- verify

    def _verify(self, where: slice | Tensor, first: Tensor, drafted: Draft) -> Verified:
        """Let the target decide, and write the tokens, and the keys and values of those before them."""
        target, state, cache = self.model, self.slots.state, self.slots.cache
        assert cache is not None
        view = cache.view(where, state.text, int(first.max()))
        known = first[:, None] - 1
        hidden, kept = target.backbone.read_tree(
            drafted.tokens,
            view,
            position=known + drafted.depth,
            visible=known.expand_as(drafted.tokens),
            sees=drafted.sees(),
        )
        how = state.settings[where], self.slots.features.top_k
        verified = decide(target, hidden, drafted, first, state.block.seed[where], *how)
        rows = torch.arange(len(first), device=first.device)[:, None]
        place = torch.arange(verified.tokens.shape[1], device=first.device)
        used = place < verified.count[:, None]
        for layer, (k, v) in enumerate(kept):
            path = rows, verified.path
            view.store(layer, k[path], v[path], torch.where(used, known + place, cache.spare))
        state.text[view.index, torch.where(used, first[:, None] + place, cache.spare)] = verified.tokens
        return verified


def _kind(row: Row) -> tuple[int | None, bool]:
    """The draft that a row asks for: how many nodes, and whether they are drawn, which a greedy text gains
    nothing by."""
    how = row.settings
    greedy = how.temperature == 0 or how.path != "sample"
    return how.tree, how.tree == 0 or (how.drawn and not greedy)

"""The lossless mode: a block model drafts, a causal model decides; the text is the causal model's, sooner.

A cycle is draft → verify → commit. A denoising pass of the draft model says what may follow each text, a
tree of it goes through the target in one pass (`Backbone.read_tree`), and what the target agrees with is
committed, with one token of its own (`verify`). A model with a causal context is both at once: its clean
stream is the target, and the keys and values that verifying leaves are the context of the next draft. Its
verifying pass can also compute the next draft's block (`read_ahead`), so that a cycle takes one pass.

B rows of a cycle, N block size, C nodes of a tree.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch

from dadlm.decode.draft import Draft
from dadlm.decode.drafter import Drafter, Place
from dadlm.decode.engine import Committed, Engine, StepResult
from dadlm.decode.events import CycleEvent
from dadlm.decode.pace import Pace, Way
from dadlm.decode.pair import PairCache
from dadlm.decode.request import Request, Row
from dadlm.decode.verify import Verified, decide, way_of
from dadlm.errors import ConfigError
from dadlm.model import Model, eval_mode
from dadlm.model.ahead import read_ahead

Result = TypeVar("Result")


class LosslessEngine(Engine):
    """An engine whose step is a cycle; `draft` None looks up. See the module's text."""

    def __init__(self, target: Model, draft: Model | None, *, lockstep: bool = True) -> None:
        super().__init__(target, lockstep=lockstep, graphs=False)
        self.drafter = Drafter(target, draft)
        # On a CPU the time of a pass grows with its nodes, and blocks that are mostly discarded never pay.
        self.pace = Pace(one_pass=self.drafter.is_target and self.device.type == "cuda")
        if draft is not None and not self.drafter.is_target:
            self.slots.make_cache = lambda target, *size: PairCache(target, self._drafting(), *size)

    def _drafting(self) -> Model:
        draft = self.drafter.model
        assert draft is not None, "prompt lookup has no model"
        return draft

    def drafts_with(self, draft: Model | None) -> bool:
        return self.drafter.is_by(draft)

    def add(self, request: Request | Row) -> Row:
        if request.settings.one_pass and not self.drafter.is_target:
            raise ConfigError(
                "one_pass needs a model that drafts for itself, one with causal_context: leave it out, or "
                "train such a model (dadlm train small-bd3lm --model.causal-context --train.ar-weight 1)"
            )
        return super().add(request)

    def remove(self, row: Row) -> None:
        super().remove(row)
        self.drafter.forget(row)

    @torch.inference_mode()
    def _start(self) -> None:
        super()._start()
        self.drafter.keep_constants()

    def clear(self) -> None:
        super().clear()
        self.drafter.clear()

    @torch.inference_mode()
    def step(self, only: Row | None = None) -> StepResult:
        """One cycle of all rows, or of `only` one."""
        target, draft = self.model, self.drafter.model
        with ExitStack() as stack:
            stack.enter_context(torch.autocast(target.device.type, enabled=False))
            stack.enter_context(eval_mode(target, *([] if draft is None else [draft])))
            self._admit(target, only)
            self._begun = False
            ready = [row for row in self.slots.rows if row and row.ready and only in (None, row)]
            groups: dict[Way | None, list[Row]] = {}
            for row in ready:
                groups.setdefault(_way(row), []).append(row)
            cycles = [(rows, *self._cycle(rows, way)) for way, rows in groups.items()]
            # Only now: what one of them had committed would be lost if another failed.
            committed, drafts = list[Committed](), dict[Row, Callable[[], CycleEvent]]()
            for rows, drafted, verified in cycles:
                for i, row in enumerate(rows):
                    drafts[row] = partial(self._event, row.cycles, drafted, verified, i)
                committed += self._take(rows, drafted, verified)
            for row in [one.row for one in committed if one.row.finished]:
                self._drop(row)
                self.drafter.ahead.pop(row, None)
            if not self.rows:
                self.clear()
            return StepResult(None, dict(enumerate(ready)), committed, drafts)

    def _event(self, number: int, drafted: Draft, verified: Verified, row: int) -> CycleEvent:
        tokens, accepted = way_of(drafted, verified, row)
        words = self.model.tokenizer
        texts = [str(one) if words is None else words.token_text(one) for one in tokens]
        return CycleEvent(number, 0, tokens, texts, accepted)

    def _cycle(self, rows: Sequence[Row], way: Way | None) -> tuple[Draft, Verified]:
        """Draft and verify; `way` None: what has been fastest."""
        start, paced = time.perf_counter(), way is None
        way = self.pace.way(len(rows)) if way is None else way
        slots = [self.slots.rows.index(row) for row in rows]
        every = slots == [*range(len(self.slots.rows))]
        where = slice(0, len(slots)) if every else torch.tensor(slots, device=self.device)
        place = Place(rows, where, torch.tensor([row.first for row in rows], device=self.device))
        drafted = self.phase("draft", lambda: self.drafter.propose(place, self.slots, way))
        verified = self.phase("verify", lambda: self._verify(place, drafted, way.one_pass))
        if paced:
            new, cold = int(verified.count.sum()), way.one_pass and any(drafted.passes or ())
            self.pace.record(len(rows), way, time.perf_counter() - start, new, cold)
        return replace(drafted, drawn_from=None, source=None), verified

    def phase(self, name: str, work: Callable[[], Result]) -> Result:
        """Do a part of a cycle; a benchmark puts one that takes the time in its place."""
        del name
        return work()

    def _take(self, rows: Sequence[Row], drafted: Draft, verified: Verified) -> list[Committed]:
        """Commit what was verified, up to what ends a text."""
        passes, committed = drafted.passes or [0] * len(rows), list[Committed]()
        for row, tokens, count, own in zip(
            rows, verified.tokens.tolist(), verified.count.tolist(), passes, strict=True
        ):
            tokens = row.up_to_end(tokens[:count])
            over = row.ends_with(tokens[-1]) or row.first + len(tokens) >= row.end
            row.cycles += 1
            first = row.first + len(tokens) - over
            new = row.commit(first, over, tokens, row.forward_passes + own + 1)
            committed.append(Committed(row, new))
        return committed

    def _verify(self, place: Place, drafted: Draft, one_pass: bool) -> Verified:
        """Let the target decide, and write the tokens, and the keys and values of those before them."""
        (rows, where, first), target = place, self.model
        state, cache = self.slots.state, self.slots.cache
        assert cache is not None
        view = cache.view(where, state.text, int(first.max()))
        known = first[:, None] - 1
        tree = {
            "position": known + drafted.depth,
            "visible": known.expand_as(drafted.tokens),
            "sees": drafted.sees(),
        }
        ahead = None
        if one_pass:
            hidden, kept, ahead = read_ahead(self._drafting(), drafted.tokens, view, **tree)
        else:
            hidden, kept = target.backbone.read_tree(drafted.tokens, view, **tree)
        how = state.settings[where], self.slots.features.top_k
        verified = decide(target, hidden, drafted, first, state.block.seed[where], *how)
        index = torch.arange(len(first), device=first.device)[:, None]
        at = torch.arange(verified.tokens.shape[1], device=first.device)
        used = at < verified.count[:, None]
        for layer, (k, v) in enumerate(kept):
            path = index, verified.path
            view.store(layer, k[path], v[path], torch.where(used, known + at, cache.spare))
        state.text[view.index, torch.where(used, first[:, None] + at, cache.spare)] = verified.tokens
        if ahead is not None:
            self.drafter.keep_ahead(rows, ahead, verified)
        return verified


def _way(row: Row) -> Way | None:
    """The draft that a row asks for; a greedy text gains nothing by drawn trees. None: what is fastest."""
    how = row.settings
    if how.tree is None:
        return None
    greedy = how.temperature == 0 or how.path != "sample"
    return Way(how.tree, how.tree == 0 or (how.drawn and not greedy), how.one_pass)

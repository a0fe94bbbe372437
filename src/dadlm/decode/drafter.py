"""Drafts for lossless mode, by a block model or by prompt lookup.

A draft takes a denoising pass over the block in which a text ends. For a model that drafts for itself, the
pass that verifies one draft can compute the block of the next (`one_pass`; `dadlm.model.ahead`). That block
begins with the last token, which was not decided yet; the filter conditions on it here.

B rows of a cycle, N block size, L positions ahead.
"""

import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from dadlm import counter
from dadlm.decode.constants import Constants
from dadlm.decode.draft import Draft, Filter, draft_tree, look_up
from dadlm.decode.drawn import chain_shape, draw_tree, tree_shape
from dadlm.decode.pace import Way
from dadlm.decode.pair import PairCache, drafts_for_itself
from dadlm.decode.predict import Prediction, predict_blocks, prediction_of
from dadlm.decode.request import Row
from dadlm.decode.slots import Slots, read_text
from dadlm.decode.verify import Verified, cycle_uniform
from dadlm.model import Model
from dadlm.model.ahead import block_after
from dadlm.model.scores import Denoised

CHAIN = 8  # tokens of a chain: the chance that more are accepted does not pay for them


class Place(NamedTuple):
    """Where the rows of a cycle are."""

    rows: Sequence[Row]
    where: slice | Tensor
    """Their slots."""
    first: Tensor
    """[B]: the position after each text."""


class Drafter:
    """See the module docstring; `model` None: prompt lookup."""

    def __init__(self, target: Model, model: Model | None) -> None:
        self._model = None if model is None else weakref.ref(model)
        self.is_target = drafts_for_itself(target, model)
        self._constants = Constants()
        self._read: weakref.WeakKeyDictionary[Row, int] = weakref.WeakKeyDictionary()
        """How many tokens of a text a separate draft model has in its own cache."""
        self.ahead: weakref.WeakKeyDictionary[Row, tuple[int, Prediction]] = weakref.WeakKeyDictionary()
        """Blocks computed by verifying passes, and the position after the text that each is for."""

    @property
    def model(self) -> Model | None:
        if self._model is None:
            return None
        model = self._model()
        assert model is not None, "an engine is used while its models are there"
        return model

    def is_by(self, model: Model | None) -> bool:
        return self._model is None if model is None else self._model is not None and self._model() is model

    def keep_constants(self) -> None:
        if (model := self.model) is not None:
            self._constants.keep(model)

    def clear(self) -> None:
        self._read.clear()
        self.ahead.clear()
        if self._model is not None and (model := self._model()) is not None:
            self._constants.release(model)

    def forget(self, row: Row) -> None:
        """The keys and values of a row are gone."""
        self._read.pop(row, None)

    def propose(self, place: Place, slots: Slots, way: Way) -> Draft:
        """What may follow the texts."""
        rows, where, first = place
        state, model = slots.state, self.model
        last = state.text[where].gather(1, first[:, None] - 1)
        room = torch.tensor([row.end - row.first - 1 for row in rows], device=first.device)
        if way.one_pass:
            # Training never masks position 0, where the block of a text of one token would begin.
            room = torch.where(first > 1, room, 0)
        if way.nodes is None or not bool((room > 0).any()):
            return Draft.chain(last, torch.ones_like(last, dtype=torch.bool))
        if model is None:
            return _looked_up(rows, last, way.nodes or CHAIN)
        settings = state.settings[where]
        greedy = settings.cold | settings.best
        temperature = torch.where(greedy, 1.0, settings.temperature)
        length = min(model.config.block_size - self.is_target, int(room.max()), way.nodes or CHAIN)
        if way.one_pass:
            ahead, passes = self._made_ahead(model, place, slots, length, temperature)
        else:
            ahead, passes = self._filter(model, place, slots, length, temperature), [1] * len(rows)
        passes = [n if most else 0 for n, most in zip(passes, room.tolist(), strict=True)]
        if not way.drawn:
            return replace(draft_tree(ahead, last[:, 0], way.nodes, room), passes=passes)
        longest = torch.minimum(ahead.exists.sum(1), room).tolist()
        shapes = [tree_shape(way.nodes, most) if way.nodes else chain_shape(CHAIN, most) for most in longest]
        uniform = cycle_uniform(state.block.seed[where], first, max(map(len, shapes)), counter.DRAFT)
        return replace(draw_tree(ahead, last[:, 0], shapes, uniform, settings, greedy), passes=passes)

    def _filter(self, model: Model, place: Place, slots: Slots, length: int, temperature: Tensor) -> Filter:
        """One denoising pass over the blocks in which the texts end.

        With a causal context a block may begin anywhere: it begins with the last token, whose keys and values
        are still missing. Other models know blocks at their places only.
        """
        rows, where, first = place
        N, state, cache = model.config.block_size, slots.state, slots.cache
        begin = first - 1 if self.is_target else first // N * N
        if isinstance(cache, PairCache):
            self._read_blocks(model, rows, slots, cache)
            cache = cache.draft
        assert cache is not None
        position = begin[:, None] + torch.arange(N, device=first.device)
        ids = state.text[where].gather(1, position.clamp(max=state.text.shape[1] - 1))
        masked = position >= first[:, None]
        view = cache.view(where, state.text, max(row.first for row in rows))
        prediction = predict_blocks(model, ids, masked, begin[:, None], view)
        return Filter(model, prediction, masked, length, temperature)

    def _made_ahead(
        self, model: Model, place: Place, slots: Slots, length: int, temperature: Tensor
    ) -> tuple[Filter, list[int]]:
        """The same from blocks in which the last token is masked too, and the passes that took for each row:
        none where a verifying pass has computed its block."""
        rows, where, first = place
        text, cache = slots.state.text, slots.cache
        assert cache is not None
        missing = [row for row in rows if self.ahead.get(row, (0,))[0] != row.first]
        if missing:
            which = torch.tensor([slots.rows.index(row) for row in missing], device=first.device)
            begin = torch.tensor([[max(1, row.first - 1)] for row in missing], device=first.device)
            ids = begin.expand(-1, model.config.block_size)  # all are masked
            view = cache.view(which, text, max(row.first for row in missing))
            made = predict_blocks(model, ids, torch.ones_like(ids, dtype=torch.bool), begin, view)
            self._keep(missing, [row.first for row in missing], made)
        prediction = Prediction.together([self.ahead[row][1] for row in rows])
        masked = torch.ones(prediction.active.shape[:2], dtype=torch.bool, device=first.device)
        filter_ = Filter(model, prediction, masked, length + 1, temperature)
        two = first[:, None] + torch.arange(-2, 0, device=first.device)
        before, last = text[where].gather(1, two.clamp(min=0)).split(1, 1)
        return filter_.after(before, last), [int(row in missing) for row in rows]

    def keep_ahead(self, rows: Sequence[Row], denoised: Denoised, verified: Verified) -> None:
        """Keep the blocks of a verifying pass that begin where the texts now end."""
        model = self.model
        assert model is not None
        last = verified.path.gather(1, verified.count[:, None] - 1)[:, 0]
        first = [row.first + n for row, n in zip(rows, verified.count.tolist(), strict=True)]
        self._keep(rows, first, prediction_of(model, block_after(model, denoised, last)))

    def _keep(self, rows: Sequence[Row], first: Sequence[int], made: Prediction) -> None:
        for i, (row, position) in enumerate(zip(rows, first, strict=True)):
            self.ahead[row] = position, made[i : i + 1]

    def _read_blocks(self, model: Model, rows: Sequence[Row], slots: Slots, cache: PairCache) -> None:
        """Let a draft model of its own read the blocks that are complete."""
        N = model.config.block_size
        behind = [(row, self._read.get(row, 0)) for row in rows]
        behind = [(row, read) for row, read in behind if read < row.first // N * N]
        if not behind:
            return
        columns = [[slots.rows.index(row), read, row.first // N * N - read] for row, read in behind]
        slot, start, take = torch.tensor(columns, device=model.device).unbind(1)
        used = max(row.first for row, _ in behind)
        width = max(column[2] for column in columns)
        read_text(model, cache.draft, slots.state.text, slot, start, take, width, used)
        for row, _ in behind:
            self._read[row] = row.first // N * N
            row.cache_passes += 1


def _looked_up(rows: Sequence[Row], last: Tensor, most: int) -> Draft:
    found = [look_up(row.ids[: row.first], min(most, row.end - row.first - 1)) for row in rows]
    width = max(map(len, found))
    tokens = torch.tensor([one + [0] * (width - len(one)) for one in found], dtype=torch.int64)
    lengths = torch.tensor([[len(one)] for one in found], device=last.device)
    exists = torch.arange(width + 1, device=last.device) <= lengths
    return Draft.chain(torch.cat([last, tokens.to(last)], 1), exists)

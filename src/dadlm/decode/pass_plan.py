"""How many passes the blocks in work take, and how many tokens each of them draws.

Where that does not depend on the tokens, it is counted when the blocks begin: on CUDA nothing then waits for
the device until they end, and a pass draws, and runs the vocabulary head on, no more than it keeps.

S slots of a pass, N block size.
"""

from collections.abc import Mapping
from functools import partial

from torch import Tensor

from dadlm.decode.batched_settings import Features
from dadlm.decode.request import Row
from dadlm.decode.samplers import SAMPLERS
from dadlm.decode.slots import Slots
from dadlm.decode.step import count_kept

_FEW = 64  # tokens: to draw fewer saves less than to capture one more size costs


class PassPlan:
    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self._kept: list[int] | None = None
        """Tokens that each pass to come keeps, in lockstep, where that is known."""

    def begin(self) -> None:
        """All rows begin a block (lockstep)."""
        features, state, self._kept = self.slots.features, self.slots.state, None
        if not self.slots.graphs.enabled or state.N == 1:
            return  # asking the device costs nothing, or is not needed
        rows = [row for row in self.slots.rows if row and not row.finished]
        whole = all(row.first + row.block <= row.length for row in rows)  # a block that is cut may end sooner
        if features.counted and whole:
            block = state.blocks(self.slots.whole(), state.N)
            self._kept = SAMPLERS[features.samplers[0]].kept_per_pass(block)

    def capacity(self) -> int | None:
        """Tokens that the next pass draws; None: as many as there are. Few different numbers are captured."""
        if not self.slots.graphs.enabled:
            return None
        features, rows, N = self.slots.features, self.slots.whole(), self.slots.state.N
        S, most = rows.stop, rows.stop * features.most_kept(N)
        drawn = features.drawn or features.position
        if not self.slots.lockstep or most == S or features.sees_tokens or not drawn:
            return most
        if self._kept is None:
            key = ("count", S, features.of_pass)
            kept = int(self.slots.graphs(key, partial(self._count, rows, features)))
        else:
            kept = self._kept[0] if self._kept else 0
        if features.padded and kept:
            return most  # an end takes steps out of a row: more may be kept than was counted
        kept = kept and max(kept, min(most, _FEW))
        return next((S << doubling for doubling in range(N) if S << doubling >= kept), most) if kept else 0

    def _count(self, rows: slice, features: Features) -> Tensor:
        state = self.slots.state
        return count_kept(state.blocks(rows, state.N), state.settings[rows], features)

    def is_decided(self, rows: slice, ready: Mapping[int, Row]) -> bool:
        """Whether to commit blocks after a pass, of the rows that were ready for it, by their index in
        `rows`: in lockstep when all are decided, else when one is."""
        if not ready or self.slots.state.N == 1:
            return bool(ready)
        if self.slots.lockstep and self._kept is not None:
            self._kept = self._kept[1:]
            return not self._kept
        is_open = self.slots.state.block.masked[rows].any(1).tolist()
        decided = [not is_open[i] for i in ready]
        return all(decided) if self.slots.lockstep else any(decided)

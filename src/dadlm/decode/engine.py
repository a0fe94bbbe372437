"""Runs the acts of decoding on a set of rows: begin a block, denoise, commit.

Each act is a function of state on the device that changes it in place. On CUDA an act is launched kernel by
kernel the first time, captured the second time, and replayed from then on: a decoding step is a few hundred
small kernels, and launching them one by one takes many times longer than running them. The lengths of the
texts are read on the device, so one capture serves the whole text; only a smaller batch needs a new one. What
is done once in a block is captured later: short texts have too few blocks to make up for it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dadlm.decode.block import Block, Step, denoise_step, keep
from dadlm.decode.infill import short_gaps
from dadlm.decode.predict import Predictor
from dadlm.decode.rows import Rows
from dadlm.decode.settings import DecodeSettings
from dadlm.model import Model
from dadlm.model.capture import capture, give_back_cached, lend_pool
from dadlm.model.layer import Modulation

Result = TypeVar("Result")
_FEW = 64  # tokens: to draw fewer saves less than to capture one more size costs
_TOKENS_BETWEEN_LOOKS = 16
_SMALL = 128  # positions in work: their graphs share memory with those before and after them
LAUNCHES = 3
"""Of what is done once in a block, before it is captured: that takes as long as several of them."""


class Act(Generic[Result]):
    """A function without arguments: launched so many times, and from then on, if `graphs`, replayed as a CUDA
    graph."""

    def __init__(self, graphs: bool, pool: Any = None, launches: int = 1) -> None:
        self.graphs, self.pool, self.launches, self.calls = graphs, pool, launches, 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, function: Callable[[], Result]) -> Result:
        """The same function every time. It is not kept: a circle would keep the cache until gc finds it."""
        self.calls += 1
        if not self.graphs or self.calls <= self.launches:
            return function()
        if self.graph is None and not self._captured(function):
            return function()
        assert self.graph is not None
        self.graph.replay()
        return self.result

    def _captured(self, function: Callable[[], Result]) -> bool:
        """Capture the function; where that cannot be done, go on kernel by kernel."""
        captured = capture("decoding", function, self.pool)
        if captured is None:
            self.graphs = False
            return False
        self.graph, self.result = captured
        return True


class Engine:
    """The acts on a set of rows that shrinks when texts are finished."""

    def __init__(
        self, model: Model, rows: Rows, predictor: Predictor, settings: DecodeSettings, graphs: bool
    ) -> None:
        self.model, self.rows, self.predictor, self.settings = model, rows, predictor, settings
        self.graphs, self.blocks, self.lent = graphs, 0, None
        # Graphs know addresses only: what the model keeps for decoding must live as long as they do.
        self.constants = (
            model.head.kept,
            *(module.kept for module in model.modules() if isinstance(module, Modulation)),
        )
        self._start(rows.next_block())

    def _start(self, block: Block) -> None:
        self.block = block
        self.acts: dict[Any, Act[Any]] = {}  # graphs before go first: what they held can be given back
        pool = self._pool(block.ids.numel())
        self.acts = defaultdict(partial(Act, self.graphs, pool))
        self.acts |= {name: Act(self.graphs, pool, LAUNCHES) for name in ("begin", "commit", "write")}

    def _pool(self, positions: int) -> Any:
        """Memory for graphs. Small ones take what others have left, and leave it to the next; what large ones
        need is too much to hold on to, and goes back to the driver before the next."""
        device = self.model.device
        if not self.graphs or device.type != "cuda":
            return None
        if positions > _SMALL:
            give_back_cached()
            return torch.cuda.graph_pool_handle()
        self.lent = self.lent or lend_pool(device.index, self)
        return self.lent

    def begin(self) -> None:
        self.acts["begin"](self._begin)

    def commit(self) -> None:
        self.acts["commit"](self._commit)

    def write(self) -> None:
        self.acts["write"](self._write)

    def passes(self) -> Iterator[int | None]:
        """Once for each forward pass that the block in work needs: room for the tokens that it keeps.

        Where that does not depend on the tokens, it is known from the start and nothing waits for the device,
        not even for the news that all texts have ended: what is left to launch has nothing to decide.
        """
        settings, (B, N) = self.settings, self.block.ids.shape
        if self.rows.block == 1:
            yield self._room(B)
        elif settings.infill is None and settings.sampler != "confidence":
            for kept in self._kept():
                if not self.graphs and not bool(self.block.masked.any()):
                    return
                yield self._room(kept)
        elif settings.sampler == "confidence":
            while bool(self.block.masked.any()):
                yield self._room(B * N)
        else:  # infilling: the masks tell what is kept, so that is counted first, and nothing else is drawn
            while kept := int(self.acts["count"](self._count)):
                yield self._room(kept)

    def step(self, room: int | None) -> Step:
        """One forward pass and what follows from it; see `passes`."""
        return self.acts["step", room](partial(self._step, room))

    def _room(self, kept: int) -> int | None:
        """Few different sizes are captured; without graphs exactly what is kept is drawn."""
        if not self.graphs:
            return None
        (B, N), settings = self.block.ids.shape, self.settings
        if settings.path != "sample":
            return B * N  # the head runs on all nodes
        if settings.padded and settings.sampler == "random":
            return B * N  # an end takes steps out of a row: what is kept when is not known from the start
        if settings.infill is not None or settings.sampler != "first-hitting":
            kept = max(kept, min(B * N, _FEW))
        return next((B << doubling for doubling in range(N) if B << doubling >= kept), B * N)

    def drop_finished(self) -> None:
        """Let go of finished rows: at once, or with graphs when that halves the batch.

        Asking the device costs a wait, so single tokens are asked after in groups.
        """
        self.blocks += 1
        if (
            self.rows.block == 1
            and self.blocks % _TOKENS_BETWEEN_LOOKS
            and self.blocks < self.rows.most_blocks
        ):
            return
        finished = self.rows.finished.tolist()
        going_on = [index for index, ended in enumerate(finished) if not ended]
        few = not self.graphs or len(going_on) <= len(finished) // 2
        if len(going_on) == len(finished) or not few:
            return
        self.rows.keep(going_on)
        self.predictor.keep(torch.tensor(going_on, dtype=torch.int64, device=self.model.device))
        self._start(Block(*(getattr(self.block, field.name)[going_on] for field in fields(Block))))

    def _kept(self) -> list[int]:
        """How many tokens each pass keeps, of a sampler that does not look at them."""
        masked = self.block.masked
        if self.settings.sampler == "first-hitting":
            return [len(masked)] * int(masked.sum(1).max())
        steps = torch.where(masked, self.block.reveal, -1).cpu().sort(1).values
        # The passes of a row are its different steps, in order.
        number = (steps != F.pad(steps[:, :-1], (1, 0), value=-1)).cumsum(1) - 1
        return number[steps >= 0].bincount().tolist()

    def _count(self) -> Tensor:
        """How many tokens the next pass keeps, infilled ones included; 0 when the block is decided."""
        assert self.settings.infill is not None
        infilled = short_gaps(self.block.masked, self.block.inside, *self.settings.infill)
        return keep(self.block, infilled, self.settings)[0].sum()

    def _begin(self) -> None:
        self._set(self.rows.next_block())

    def _step(self, room: int | None) -> Step:
        # A row takes part in a forward pass while it has something to decide.
        self.rows.forward_passes += self.block.masked.any(1)
        block = self.block
        if self.graphs:  # what a step saw must not change before the next one is made
            block = replace(
                block, ids=block.ids.clone(), masked=block.masked.clone(), step=block.step.clone()
            )
        after, step = denoise_step(self.model, self.predictor, block, self.settings, room)
        self._set(after)
        return step

    def _commit(self) -> None:
        self.rows.commit(self.block)

    def _write(self) -> None:
        self.predictor.commit(self.block.ids, self.block.first)
        if self.predictor.cache_writes:
            self.rows.cache_passes += ~self.rows.finished

    def _set(self, block: Block) -> None:
        """Change the block in work; with graphs its tensors stay where these will look for them."""
        if not self.graphs:
            self.block = block
            return
        for name in (field.name for field in fields(Block)):
            old, new = getattr(self.block, name), getattr(block, name)
            if old is not new:
                old.copy_(new)

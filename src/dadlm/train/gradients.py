"""The gradients of a step: its rows forward and backward, in micro-batches, over processes, or as a graph.

The loss is divided by the tokens of the whole batch, so that however it is cut the sum is the same.
"""

import torch
from torch import Tensor, nn

from dadlm.errors import TrainingError
from dadlm.model import Model
from dadlm.nodes import Rooms, make_rooms
from dadlm.noise import Noise, NoiseConfig
from dadlm.objective import Losses, losses
from dadlm.objective.factorised import cut
from dadlm.train.batches import Batches, Counted, PairBatches, parts_of
from dadlm.train.graphs import Inputs, StepGraphs
from dadlm.train.ranks import Ranks
from dadlm.train.spread import unspoken


class Gradients:
    """Fills the gradients of the model within `whole` (see `spread`)."""

    def __init__(
        self, whole: nn.Module, model: Model, batches: Batches | PairBatches, ranks: Ranks, bf16: bool
    ) -> None:
        self.whole, self.model, self.batches, self.ranks, self.bf16 = whole, model, batches, ranks, bf16
        self.train, self.device = batches.run.train, model.device
        self.parts = parts_of(batches.run, ranks)
        one_piece = self.device.type == "cuda" and self.train.accumulate == 1 and not self.train.checkpointing
        alone = ranks.group is None
        self.graphs = StepGraphs(model, self._replayed) if one_piece and alone and self.train.graphs else None

    def fill(self, step: int, noise: NoiseConfig, report: bool) -> tuple[Tensor, Tensor]:
        """The loss of the whole batch and, if it is to be reported, what the graph adds; on the device."""
        full = None
        try:
            if self.graphs is not None and self.train.power_at(step) == 1.0:
                return self._replay(step, noise)
            return self._accumulate(step, noise, report)
        except torch.OutOfMemoryError as error:
            full = error.with_traceback(None)  # whose frames would hold on to the memory
        if self.graphs is not None and self.graphs.captured:  # each holds gradients: go on without them
            self._free()
            return self.fill(step, noise, report)
        raise TrainingError(self._what_fits(step, noise)) from full

    def _free(self) -> None:
        """Let go of all that is held on the device beside weights and optimiser."""
        self.graphs = None
        self.model.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _accumulate(self, step: int, noise: NoiseConfig, report: bool) -> tuple[Tensor, Tensor]:
        self.model.zero_grad(set_to_none=True)
        power, values = self.train.power_at(step), torch.zeros(2, device=self.device)
        for part in self.parts[:-1]:
            with unspoken(self.whole):
                values += self.backward(*self._inputs(step, noise, part), power, report)
        values += self.backward(*self._inputs(step, noise, self.parts[-1]), power, report)
        loss, gap = self.ranks.sum(values)
        return loss, gap

    def _draw(self, step: int, noise: NoiseConfig, part: Tensor) -> tuple[Tensor, Noise | None, Rooms | None]:
        """Rows at places `part` of the batch, their noise and, for CUDA, the room they need; on the CPU."""
        ids, drawn = self.batches.take(step, noise, part)
        on_cuda = self.device.type == "cuda"
        return ids, drawn, self._rooms(ids, drawn) if on_cuda and drawn is not None else None

    def _rooms(self, ids: Tensor, noise: Noise) -> Rooms:
        """Shapes read off the noise before the device begins: nothing there has to be waited for."""
        config = self.model.config
        size = min(config.block, ids.shape[1])  # MDLM's block is its row
        learned = cut(ids, noise.masked, size, noise.blocks)[1].flatten(1)
        graph = config.family == "dadlm"
        return make_rooms(learned, size, config.nodes_per_mask, graph, self.batches.sizes)

    def _inputs(
        self, step: int, noise: NoiseConfig, part: Tensor
    ) -> tuple[Tensor, Noise | None, Rooms | None, Counted]:
        """The same on the device, and what of them counts."""
        ids, drawn, rooms = self._draw(step, noise, part)
        counted = self.batches.counted(step, part).to(self.device)
        return ids.to(self.device), None if drawn is None else drawn.to(self.device), rooms, counted

    def backward(
        self,
        ids: Tensor,
        noise: Noise | None,
        rooms: Rooms | None,
        counted: Counted,
        power: float,
        report: bool,
    ) -> Tensor:
        """Add the share of some rows to the gradients; their loss and gap, [2]."""

        def work(model: Model) -> tuple[Tensor, Tensor]:
            parts = _scored(model, ids, noise, power, report, rooms, counted.learned)
            gap = (parts.bound - parts.reconstruction).sum()
            return parts.train.sum() / counted.tokens, gap / counted.tokens

        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            loss, gap = self.whole(work)
        loss.backward()
        return torch.stack([loss.detach(), gap])

    def _replay(self, step: int, noise: NoiseConfig) -> tuple[Tensor, Tensor]:
        """The same in one piece; the shapes, which `rooms` decide, have to be known before."""
        assert self.graphs is not None
        ids, drawn, rooms = self._draw(step, noise, self.parts[0])
        counted = self.batches.counted(step, self.parts[0])
        inputs: Inputs = (ids, counted.tokens, counted.learned)
        if drawn is not None:
            inputs += (drawn.masked, drawn.time, drawn.weight, drawn.blocks)
        (values,) = self.graphs(inputs, rooms)
        loss, gap = values
        return loss, gap

    def _replayed(self, inputs: Inputs, rooms: Rooms | None) -> tuple[Tensor, ...]:
        ids, tokens, learned, *drawn = inputs
        assert ids is not None and tokens is not None
        noise = Noise(*drawn) if drawn else None  # type: ignore[arg-type]
        return (self.backward(ids, noise, rooms, Counted(tokens, learned), 1.0, True),)

    def _what_fits(self, step: int, noise: NoiseConfig) -> str:
        """Try smaller parts of the batch until one fits the device, and say how to ask for it."""
        train, rows = self.train, len(self.parts[0])
        if self.ranks.group is not None:  # the others do not know, and would not join in
            return (
                f"out of memory: {rows} rows at once do not fit {self.device}: raise --train.accumulate "
                f"(now {train.accumulate}), or try --train.checkpointing or --train.parallel fsdp"
            )
        for accumulate in (
            n for n in range(train.accumulate + 1, train.batch_size + 1) if not train.batch_size % n
        ):
            self._free()
            part = torch.arange(train.batch_size // accumulate)
            try:
                self.backward(*self._inputs(step, noise, part), 1.0, True)
            except torch.OutOfMemoryError:
                continue
            return (
                f"out of memory: {rows} rows at once do not fit {self.device}, {len(part)} do: pass "
                f"--train.accumulate {accumulate}; results stay the same"
            )
        return f"out of memory: not even one row fits {self.device}; try --train.checkpointing"


def _scored(
    model: Model,
    ids: Tensor,
    noise: Noise | None,
    power: float,
    report: bool,
    rooms: Rooms | None,
    learned: Tensor | None,
) -> Losses:
    """`losses` of the positions that are learned, on CUDA without waiting for their number."""
    if learned is None:
        return losses(model, ids, noise, power, report, rooms)
    if noise is None and ids.is_cuda:  # AR: the vocabulary head is not spared the others
        nll = losses(model, ids, noise, power, report, rooms).train * learned[:, 1:]
        return Losses(nll, nll.detach(), nll.detach())
    return losses(model, ids, noise, power, report, rooms, learned)

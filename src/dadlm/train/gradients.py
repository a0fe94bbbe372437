"""The gradients of a step: its rows forward and backward, in micro-batches, over processes, or as a graph.

The loss is divided by the tokens of the whole batch, so that however it is cut the sum is the same.
"""

import torch
from torch import Tensor, nn

from dadlm.errors import TrainingError
from dadlm.model import Model
from dadlm.nodes import Rooms, make_rooms
from dadlm.noise import Noise, NoiseConfig
from dadlm.objective import losses
from dadlm.objective.factorised import cut
from dadlm.train.batches import Batches
from dadlm.train.graphs import StepGraphs
from dadlm.train.ranks import Ranks
from dadlm.train.spread import unspoken


class Gradients:
    """Fills the gradients of the model within `whole` (see `spread`)."""

    def __init__(self, whole: nn.Module, model: Model, batches: Batches, ranks: Ranks, bf16: bool) -> None:
        self.whole, self.model, self.batches, self.ranks, self.bf16 = whole, model, batches, ranks, bf16
        self.train, self.device = batches.run.train, model.device
        self.parts = batches.parts(ranks)
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
        raise TrainingError(self._what_fits(step, noise)) from full

    def _accumulate(self, step: int, noise: NoiseConfig, report: bool) -> tuple[Tensor, Tensor]:
        self.model.zero_grad(set_to_none=True)
        power, values = self.train.power_at(step), torch.zeros(2, device=self.device)
        for part in self.parts[:-1]:
            with unspoken(self.whole):
                values += self.backward(*self._inputs(step, noise, part), power, report)
        values += self.backward(*self._inputs(step, noise, self.parts[-1]), power, report)
        loss, gap = self.ranks.sum(values)
        return loss, gap

    def _inputs(self, step: int, noise: NoiseConfig, part: Tensor) -> tuple[Tensor, Noise | None]:
        """Rows at places `part` of the batch and their noise, on the device."""
        ids, drawn = self.batches.take(step, noise, part)
        return ids.to(self.device), None if drawn is None else drawn.to(self.device)

    def backward(
        self, ids: Tensor, noise: Noise | None, power: float, report: bool, rooms: Rooms | None = None
    ) -> Tensor:
        """Add the share of some rows to the gradients; their loss and gap, [2]."""

        def work(model: Model) -> tuple[Tensor, Tensor]:
            parts = losses(model, ids, noise, power, report, rooms)
            gap = (parts.bound - parts.reconstruction).sum()
            return parts.train.sum() / self.batches.tokens, gap / self.batches.tokens

        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            loss, gap = self.whole(work)
        loss.backward()
        return torch.stack([loss.detach(), gap])

    def _replay(self, step: int, noise: NoiseConfig) -> tuple[Tensor, Tensor]:
        """The same in one piece, with shapes that are read off the noise before the device begins."""
        assert self.graphs is not None
        ids, drawn = self.batches.take(step, noise, self.parts[0])
        inputs, rooms = (ids,), None
        if drawn is not None:
            config = self.model.config
            learned = cut(ids, drawn.masked, config.block, drawn.blocks)[1].flatten(1)
            rooms = make_rooms(learned, config.block, config.nodes_per_mask, config.family == "dadlm")
            given = (drawn.masked, drawn.time, drawn.weight, drawn.blocks)
            inputs = (ids, *(x for x in given if x is not None))
        (values,) = self.graphs(inputs, rooms)
        loss, gap = values
        return loss, gap

    def _replayed(self, inputs: tuple[Tensor, ...], rooms: Rooms | None) -> tuple[Tensor, ...]:
        noise = None if rooms is None else Noise(*inputs[1:])
        return (self.backward(inputs[0], noise, 1.0, True, rooms),)

    def _what_fits(self, step: int, noise: NoiseConfig) -> str:
        """Try smaller parts of the batch until one fits the device, and say how to ask for it."""
        train, rows = self.train, len(self.parts[0])
        self.graphs = None
        if self.ranks.group is not None:  # the others do not know, and would not join in
            return (
                f"out of memory: {rows} rows at once do not fit {self.device}: raise --train.accumulate "
                f"(now {train.accumulate}), or try --train.checkpointing or --train.parallel fsdp"
            )
        for accumulate in (
            n for n in range(train.accumulate + 1, train.batch_size + 1) if not train.batch_size % n
        ):
            self.model.zero_grad(set_to_none=True)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
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

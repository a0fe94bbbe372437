"""The gradients of a step: rows forward and backward, in micro-batches, over processes, or as a CUDA
graph."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from dadlm.errors import TrainingError
from dadlm.model import Model
from dadlm.model.capture import capture
from dadlm.nodes import PaddedSizes, padded_sizes
from dadlm.noise import NoiseConfig
from dadlm.objective import losses
from dadlm.train.batches import Batches, StepInputs, parts_of
from dadlm.train.distributed import no_sync
from dadlm.train.processes import Ranks

_MOST = 16  # graphs: each holds a set of gradients


def map_tensors(function: Callable[..., Any], *trees: Any) -> Any:
    """Apply a function to the tensors of (nested) named tuples of the same form; everything else is kept."""
    first = trees[0]
    if isinstance(first, tuple):
        return type(first)(*(map_tensors(function, *parts) for parts in zip(*trees, strict=True)))
    return function(*trees) if isinstance(first, Tensor) else first


_Captured = tuple[torch.cuda.CUDAGraph, Tensor, list[Tensor | None]]  # its output, and the gradients it fills


class StepGraphs:
    """Calls `compute(inputs, key)`, which fills the gradients and whose shapes follow from its arguments:
    launched kernel by kernel the first time, captured as a CUDA graph the second, then replayed."""

    def __init__(self, model: Model, compute: Callable[[Any, Any], Tensor]) -> None:
        self.parameters, self.compute = list(model.parameters()), compute
        self.inputs: dict[Any, Any] = {}
        self.seen: set[Any] = set()
        self.captured: dict[Any, _Captured | None] = {}
        self.pool = None

    def __call__(self, inputs: Any, key: Any) -> Tensor:
        """Takes inputs on the CPU; the output is on the device and valid until the next call."""
        shapes = map_tensors(lambda x: x.shape, inputs)
        here, which = self._load(inputs, shapes), (shapes, key)
        if which in self.seen and which not in self.captured:
            self.captured[which] = self._capture(here, key) if len(self.captured) < _MOST else None
        self.seen.add(which)
        captured = self.captured.get(which)
        if captured is None:
            self._drop_gradients()
            return self.compute(here, key)
        graph, output, grads = captured
        for parameter, grad in zip(self.parameters, grads, strict=True):
            parameter.grad = grad
        graph.replay()
        return output

    def _load(self, inputs: Any, shapes: Any) -> Any:
        """Copy inputs from the CPU to the tensors that graphs of these shapes read."""
        if shapes not in self.inputs:
            device = self.parameters[0].device
            self.inputs[shapes] = map_tensors(lambda x: x.to(device, copy=True), inputs)
        else:
            map_tensors(
                lambda here, x: here.copy_(x.pin_memory(), non_blocking=True), self.inputs[shapes], inputs
            )
        return self.inputs[shapes]

    def _capture(self, inputs: Any, key: Any) -> _Captured | None:
        self._drop_gradients()
        # Graphs share memory: they never run at the same time, and outputs are read before the next replay.
        captured = capture("training", lambda: self.compute(inputs, key), self.pool)
        self.pool = None if captured is None else captured[0].pool()  # a failed capture may never free it
        return None if captured is None else (*captured, [parameter.grad for parameter in self.parameters])

    def _drop_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


class Gradients:
    """Fills the gradients of a model; `wrapped` is what `wrap_distributed` made of it."""

    def __init__(self, wrapped: nn.Module, model: Model, batches: Batches, ranks: Ranks, bf16: bool) -> None:
        self.wrapped, self.model, self.batches, self.ranks, self.bf16 = wrapped, model, batches, ranks, bf16
        self.train, self.device = batches.run.train, model.device
        self.parts = parts_of(batches.run, ranks)
        one_piece = self.device.type == "cuda" and self.train.accumulate == 1 and not self.train.checkpointing
        alone = ranks.group is None
        self.graphs = StepGraphs(model, self.backward) if one_piece and alone and self.train.graphs else None

    def fill(self, step: int, noise: NoiseConfig, report: bool) -> Tensor:
        """The loss of the whole batch and, with `report`, what the graph adds, [2]; on the device."""
        full = None
        try:
            if self.graphs is None:
                return self._accumulate(step, noise, report)
            return self.graphs(*self._draw(step, noise, self.parts[0]))
        except torch.OutOfMemoryError as error:
            full = error.with_traceback(None)  # its frames would hold on to the memory
        if self.graphs is not None and self.graphs.captured:  # each holds gradients: go on without them
            self._free()
            return self.fill(step, noise, report)
        raise TrainingError(self._what_fits(step, noise)) from full

    def _accumulate(self, step: int, noise: NoiseConfig, report: bool) -> Tensor:
        self.model.zero_grad(set_to_none=True)
        values = torch.zeros(2, device=self.device)
        for index, part in enumerate(self.parts):
            is_last = index == len(self.parts) - 1
            with nullcontext() if is_last else no_sync(self.wrapped):
                values += self.backward(*self._draw(step, noise, part), report)
        return self.ranks.sum(values)

    def backward(self, inputs: StepInputs, sizes: PaddedSizes | None, report: bool = True) -> Tensor:
        """Add the gradients of some rows; returns their loss and gap, [2]."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            ids, noise, tokens, loss_mask = map_tensors(lambda x: x.to(self.device), inputs)
            how = {"report": report, "sizes": sizes, "loss_mask": loss_mask}
            how |= {"chains": None, "next_tokens": self.train.ar_weight > 0}  # the bound is for validation
            parts = losses(self.wrapped, ids, noise, **how)
            loss = parts.train.sum() / tokens
            if parts.next_token is not None:
                loss = loss + self.train.ar_weight * (parts.next_token.sum() / tokens)
            gap = parts.graph_gap.sum() / tokens
        loss.backward()
        return torch.stack([loss.detach(), gap])

    def _draw(self, step: int, noise: NoiseConfig, part: Tensor) -> tuple[StepInputs, PaddedSizes | None]:
        """Rows at places `part` of the batch, on the CPU; and, for CUDA, the sizes they are padded to, so
        that the host never waits for the device."""
        inputs, config = self.batches.take(step, noise, part), self.model.config
        if inputs.noise is None or self.device.type != "cuda":
            return inputs, None
        block = min(config.block, inputs.ids.shape[1])  # MDLM's block is its row
        masked = inputs.noise.split_blocks(inputs.ids, block)[1].flatten(1)
        is_graph, steps = config.family == "dadlm", self.batches.size_steps
        return inputs, padded_sizes(masked, block, config.nodes_per_mask, is_graph, steps)

    def _free(self) -> None:
        """Free everything on the device but weights and optimiser state."""
        self.graphs = None
        self.model.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _what_fits(self, step: int, noise: NoiseConfig) -> str:
        """Try smaller parts of the batch until one fits the device, and say how to ask for it."""
        train, rows = self.train, len(self.parts[0])
        if self.ranks.group is not None:  # the other processes would not take part
            return (
                f"out of memory: {rows} rows at once do not fit {self.device}: raise --train.accumulate "
                f"(now {train.accumulate}), or try --train.checkpointing or --train.parallel fsdp"
            )
        for accumulate in range(train.accumulate + 1, train.batch_size + 1):
            if train.batch_size % accumulate:
                continue
            self._free()
            part = torch.arange(train.batch_size // accumulate)
            try:
                self.backward(*self._draw(step, noise, part))
            except torch.OutOfMemoryError:
                continue
            return (
                f"out of memory: {rows} rows at once do not fit {self.device}, {len(part)} do: pass "
                f"--train.accumulate {accumulate}; results stay the same"
            )
        return f"out of memory: not even one row fits {self.device}; try --train.checkpointing"

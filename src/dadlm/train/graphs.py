"""Forward and backward pass as a CUDA graph: launching thousands of kernels takes longer than running them.

A graph needs shapes that are known before the device begins: `nodes.Rooms`, counted on the CPU from the same
noise, of which few different ones occur. The first step of each is launched kernel by kernel (which also
compiles what is to be compiled), the second is captured, and from then on it is replayed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dadlm.model import Model
from dadlm.model.capture import capture

Inputs = tuple[Tensor | None, ...]
Outputs = tuple[Tensor, ...]
Compute = Callable[[Inputs, Any], Outputs]


_MOST = 16  # graphs: each holds a set of gradients


@dataclass
class _Captured:
    graph: torch.cuda.CUDAGraph
    outputs: Outputs
    grads: list[Tensor | None]


class StepGraphs:
    """Calls `compute(inputs, key)`, which fills the model's gradients; inputs of the same shapes and the same
    key have the same shapes inside."""

    def __init__(self, model: Model, compute: Compute) -> None:
        self.parameters, self.compute = list(model.parameters()), compute
        self.inputs: dict[Any, Inputs] = {}
        self.seen: set[Any] = set()
        self.captured: dict[Any, _Captured | None] = {}
        self.pool = None

    def __call__(self, inputs: Inputs, key: Any) -> Outputs:
        """Outputs are on the device and good until the next call."""
        shapes = tuple(None if x is None else x.shape for x in inputs)
        here, which = self._load(inputs, shapes), (shapes, key)
        if which not in self.seen:
            self.seen.add(which)
            self._forget()
            return self.compute(here, key)
        if which not in self.captured:
            self.captured[which] = self._capture(here, key) if len(self.captured) < _MOST else None
        captured = self.captured[which]
        if captured is None:
            self._forget()
            return self.compute(here, key)
        for parameter, grad in zip(self.parameters, captured.grads, strict=True):
            parameter.grad = grad
        captured.graph.replay()
        return captured.outputs

    def _load(self, inputs: Inputs, shapes: Any) -> Inputs:
        """Bring inputs from the CPU to where the graphs of their shapes look for them."""
        if shapes not in self.inputs:
            device = self.parameters[0].device
            self.inputs[shapes] = tuple(None if x is None else x.to(device, copy=True) for x in inputs)
            return self.inputs[shapes]
        for here, x in zip(self.inputs[shapes], inputs, strict=True):
            if here is not None and x is not None:
                here.copy_(x.pin_memory(), non_blocking=True)
        return self.inputs[shapes]

    def _capture(self, inputs: Inputs, key: Any) -> _Captured | None:
        self._forget()
        # Graphs never run side by side and each one's outputs are used before the next: they share memory.
        captured = capture("training", lambda: self.compute(inputs, key), self.pool)
        if captured is None:
            self.pool = None  # the failed one may hold it for ever
            return None
        graph, outputs = captured
        self.pool = graph.pool()
        return _Captured(graph, outputs, [parameter.grad for parameter in self.parameters])

    def _forget(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

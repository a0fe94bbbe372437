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

Inputs = tuple[Tensor, ...]
Compute = Callable[[Inputs, Any], Inputs]


@dataclass
class _Captured:
    graph: torch.cuda.CUDAGraph
    outputs: Inputs
    grads: list[Tensor | None]


class StepGraphs:
    """Calls `compute(inputs, key)`, which fills the model's gradients; the same key has the same shapes."""

    def __init__(self, model: Model, compute: Compute) -> None:
        self.parameters, self.compute = list(model.parameters()), compute
        self.inputs: Inputs | None = None
        self.seen: set[Any] = set()
        self.captured: dict[Any, _Captured | None] = {}
        self.pool = None

    def __call__(self, inputs: Inputs, key: Any) -> Inputs:
        """Outputs are on the device and good until the next call."""
        self._load(inputs)
        assert self.inputs is not None
        if key not in self.seen:
            self.seen.add(key)
            self._forget()
            return self.compute(self.inputs, key)
        if key not in self.captured:
            self.captured[key] = self._capture(key)
        captured = self.captured[key]
        if captured is None:
            self._forget()
            return self.compute(self.inputs, key)
        for parameter, grad in zip(self.parameters, captured.grads, strict=True):
            parameter.grad = grad
        captured.graph.replay()
        return captured.outputs

    def _load(self, inputs: Inputs) -> None:
        """Bring inputs from the CPU to where the graphs look for them."""
        device = self.parameters[0].device
        if self.inputs is None:
            self.inputs = tuple(x.to(device) for x in inputs)
            return
        for here, x in zip(self.inputs, inputs, strict=True):
            here.copy_(x.pin_memory(), non_blocking=True)

    def _capture(self, key: Any) -> _Captured | None:
        inputs = self.inputs
        assert inputs is not None
        self._forget()
        # Graphs never run side by side and each one's outputs are used before the next: they share memory.
        captured = capture("training", lambda: self.compute(inputs, key), self.pool)
        if captured is None:
            return None
        graph, outputs = captured
        self.pool = graph.pool()
        return _Captured(graph, outputs, [parameter.grad for parameter in self.parameters])

    def _forget(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

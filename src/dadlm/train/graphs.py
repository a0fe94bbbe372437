"""Forward and backward pass as a CUDA graph: launching thousands of kernels takes longer than running them.

A graph needs shapes that are known before the device begins: `nodes.PaddedSizes`, counted on the CPU. The
first step of each is launched kernel by kernel (which also compiles), the second is captured, later ones
are replayed.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dadlm.model import Model
from dadlm.model.capture import capture

_MOST = 16  # graphs: each holds a set of gradients


def map_tensors(function: Callable[..., Any], *trees: Any) -> Any:
    """Apply a function to the tensors of (nested) named tuples of the same form; all else stays."""
    first = trees[0]
    if isinstance(first, tuple):
        return type(first)(*(map_tensors(function, *parts) for parts in zip(*trees, strict=True)))
    return function(*trees) if isinstance(first, Tensor) else first


_Captured = tuple[torch.cuda.CUDAGraph, Tensor, list[Tensor | None]]  # its output, and the gradients it fills


class StepGraphs:
    """Calls `compute(inputs, key)`, which fills the model's gradients; inputs of the same shapes and the same
    key have the same shapes inside."""

    def __init__(self, model: Model, compute: Callable[[Any, Any], Tensor]) -> None:
        self.parameters, self.compute = list(model.parameters()), compute
        self.inputs: dict[Any, Any] = {}
        self.seen: set[Any] = set()
        self.captured: dict[Any, _Captured | None] = {}
        self.pool = None

    def __call__(self, inputs: Any, key: Any) -> Tensor:
        """Takes inputs on the CPU; the output is on the device and good until the next call."""
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
        """Bring inputs from the CPU to where the graphs of their shapes look for them."""
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
        # Graphs never run side by side and each one's output is used before the next: they share memory.
        captured = capture("training", lambda: self.compute(inputs, key), self.pool)
        self.pool = None if captured is None else captured[0].pool()  # a failed one may hold it for ever
        return None if captured is None else (*captured, [parameter.grad for parameter in self.parameters])

    def _drop_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

"""Work captured as a CUDA graph, or left as it is where that cannot be done."""

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


def capture(
    what: str, function: Callable[[], Result], pool: Any = None
) -> tuple[torch.cuda.CUDAGraph, Result] | None:
    """The graph of a call and what the call returned; None, and a warning, if it cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        # The outer context puts the stream back that a failed capture leaves behind.
        with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph, pool=pool):
            result = function()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        first_line = str(error).split("\n")[0]
        warnings.warn(f"{what} without CUDA graphs, more slowly: {first_line}", stacklevel=3)
        for random in torch.cuda.default_generators:
            random.graphsafe_set_state(random.clone_state())  # it would believe for ever to be captured
        return None
    return graph, result

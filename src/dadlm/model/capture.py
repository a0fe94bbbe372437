"""Work captured as a CUDA graph, or left as it is where that cannot be done."""

import warnings
from collections.abc import Callable
from contextlib import suppress
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
        with suppress(RuntimeError):
            _end_capture()
        return None
    return graph, result


def _end_capture() -> None:
    """After a failed capture the random generator believes to be captured until another capture succeeds.

    It is not replaced: graphs captured before know it, and would no longer hear of a new seed.
    """
    graph, here = torch.cuda.CUDAGraph(), torch.cuda.stream(torch.cuda.current_stream())
    with here, torch.cuda.graph(graph, capture_error_mode="relaxed"):
        torch.zeros(1, device="cuda")  # an empty graph would warn

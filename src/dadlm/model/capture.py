"""Work captured as a CUDA graph, or left as it is where that cannot be done."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


def capture(
    what: str, function: Callable[[], Result], pool: Any = None
) -> tuple[torch.cuda.CUDAGraph, Result] | None:
    """The graph of a call and what the call returned; None, and a warning, if it cannot be captured.

    The call must have been made before: kernels are compiled then, and memory is measured (`_make_room`).
    """
    graph = torch.cuda.CUDAGraph()
    try:
        with _capturing(graph, pool):
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


@cache
def lasting_pool(device: int) -> Any:
    """Memory for graphs that come and go one after the other: what one leaves, the next one takes.

    A pool lasts as long as a graph that uses it: this one is held by a graph that does next to nothing.
    """
    pool, holder = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
    with torch.cuda.device(device), _capturing(holder, pool):
        torch.zeros(1, device="cuda")  # an empty graph would warn
    _holders.append(holder)
    return pool


_holders: list[torch.cuda.CUDAGraph] = []


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, pool: Any, mode: str = "global") -> Iterator[None]:
    """As `torch.cuda.graph`, which first hands all cached memory back to the driver: with small graphs, that
    and asking for it again takes longer than to capture."""
    torch.cuda.synchronize()
    _make_room()
    with torch.cuda.stream(_stream(torch.cuda.current_device())):
        graph.capture_begin(*([] if pool is None else [pool]), capture_error_mode=mode)
        try:
            yield
        finally:
            graph.capture_end()


@cache
def _stream(device: int) -> torch.cuda.Stream:
    """One for all captures: matrix products keep a workspace for each stream they have seen."""
    return torch.cuda.Stream(device)


def _make_room() -> None:
    """A graph has memory of its own and cannot use what is cached outside. The call made before has left as
    much as this one needs: the driver has to have that much, or gets the cache back."""
    cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    if cached > torch.cuda.mem_get_info()[0]:
        torch.cuda.empty_cache()


def _end_capture() -> None:
    """After a failed capture the random generator believes to be captured until another capture succeeds.

    It is not replaced: graphs captured before know it, and would no longer hear of a new seed.
    """
    with _capturing(torch.cuda.CUDAGraph(), None, mode="relaxed"):
        torch.zeros(1, device="cuda")  # an empty graph would warn

"""Work captured as a CUDA graph, or left as it is where that cannot be done."""

import threading
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")
_one_at_a_time = threading.RLock()
"""Captures share a stream, and waiting for the device or giving memory back would spoil another's."""


def capture(
    what: str, function: Callable[[], Result], pool: Any = None
) -> tuple[torch.cuda.CUDAGraph, Result] | None:
    """The graph of a call and what the call returned; None, and a warning, if it cannot be captured.

    The call must have been made before: kernels are compiled then, and memory is measured (`_make_room`).
    """
    with _one_at_a_time:  # until a failed capture is cleared away
        try:
            with suppress(torch.OutOfMemoryError):
                return _captured(function, pool)
            give_back_cached()  # a capture cannot do that on its own
            return _captured(function, pool)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            first_line = str(error).split("\n")[0]
            warnings.warn(f"{what} without CUDA graphs, more slowly: {first_line}", stacklevel=3)
            _spoilt.add(pool)
            with suppress(RuntimeError):
                _end_capture()
            return None


def _captured(function: Callable[[], Result], pool: Any) -> tuple[torch.cuda.CUDAGraph, Result]:
    graph = torch.cuda.CUDAGraph()
    with _capturing(graph, pool):
        result = function()
    return graph, result


def give_back_cached() -> None:
    """Memory that is cached and not in use, to the driver; not while another thread captures."""
    with _one_at_a_time:
        torch.cuda.empty_cache()


_idle: dict[int, list[torch.cuda.CUDAGraph]] = defaultdict(list)
"""On each device: graphs that do next to nothing, but keep a pool of memory that nobody uses now."""
_spoilt: set[Any] = set()
"""Pools that a failed capture has left in the middle."""


def lend_pool(device: int, borrower: object) -> Any:
    """Memory for the graphs of a borrower alone; who borrows after it is gone takes what it has left.

    None where there is none to be had: then each graph has its own.
    """
    idle = _idle[device]
    try:
        with _one_at_a_time, torch.cuda.device(device):
            holder = idle.pop() if idle else _next_to_nothing()
    except RuntimeError:
        return None
    weakref.finalize(borrower, _hand_back, idle, holder).atexit = False
    return holder.pool()


def _next_to_nothing(mode: str = "thread_local") -> torch.cuda.CUDAGraph:
    """A graph with a pool of its own, which lasts as long as a graph that uses it."""
    graph = torch.cuda.CUDAGraph()
    with _capturing(graph, None, mode):
        torch.zeros(1, device="cuda")  # an empty graph would warn
    return graph


def _hand_back(idle: list[torch.cuda.CUDAGraph], holder: torch.cuda.CUDAGraph) -> None:
    if holder.pool() not in _spoilt:
        idle.append(holder)


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, pool: Any, mode: str = "thread_local") -> Iterator[None]:
    """As `torch.cuda.graph`, which first hands all cached memory back to the driver: with small graphs, that
    and asking for it again takes longer than to capture.

    Only for who has `_one_at_a_time`. Threads that serve other models go on meanwhile, and may ask for
    memory: only this one is watched.
    """
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
    _next_to_nothing(mode="relaxed")

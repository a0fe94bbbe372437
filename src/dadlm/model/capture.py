"""Work captured as a CUDA graph, or left as it is where that cannot be done."""

import threading
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")
_one_at_a_time = threading.RLock()
"""Captures share a stream, and waiting for the device or freeing memory would break another one."""


class Engines(list):
    """What a model keeps between calls of decoding: engines, and itself in another mode. A copy of the model
    starts without them."""

    def __deepcopy__(self, memo: dict) -> "Engines":
        return Engines()

    def __reduce__(self) -> tuple[type, tuple]:
        return Engines, ()


class Graphs:
    """The captured functions of one owner, by key; those of one kind (`key[0]`) share a memory pool. Unless
    `enabled`, functions are only called."""

    def __init__(self, enabled: bool, device: torch.device) -> None:
        self.enabled, self.device = enabled, device
        self.callables: dict[Hashable, GraphedCallable] = {}
        self._pools: dict[str, Any] = {}

    def __call__(self, key: tuple[Any, ...], function: Callable[[], Result], launches: int = 1) -> Result:
        """Call or replay a function; a key always means the same function of tensors at the same
        addresses."""
        if not self.enabled:
            return function()
        graphed = self.callables.get(key)
        if graphed is None:
            graphed = self.callables[key] = GraphedCallable(launches)
        return graphed(function, partial(self._capture, key[0]))

    def _capture(self, kind: str, function: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any] | None:
        """Graphs of one kind share memory: the output of one is read before the next is replayed."""
        if kind not in self._pools and self.device.type == "cuda":
            self._pools[kind] = torch.cuda.graph_pool_handle()
        captured = capture("decoding", function, self._pools.get(kind))
        if captured is None:
            self._pools.pop(kind, None)  # the failed capture may never free it
        return captured

    def clear(self) -> None:
        """Free all graphs and their memory."""
        self.callables.clear()
        self._pools.clear()


class GraphedCallable:
    """A function without arguments: launched `launches` times, then captured as a CUDA graph and replayed."""

    def __init__(self, launches: int) -> None:
        self.launches = launches
        self.captured: tuple[torch.cuda.CUDAGraph, Any] | None = None

    def __call__(self, function: Callable[[], Result], capture: Callable[..., Any]) -> Result:
        """`function` must be the same every time. It is not stored: the reference cycle would keep the cache
        alive until the garbage collector runs."""
        if self.captured is None and self.launches == 0:
            self.captured = capture(function)
        self.launches -= 1  # a capture that failed is not tried again
        if self.captured is None:
            return function()
        graph, result = self.captured
        graph.replay()
        return result


def capture(
    what: str, function: Callable[[], Result], pool: Any = None
) -> tuple[torch.cuda.CUDAGraph, Result] | None:
    """The graph of a call and what the call returned; None, and a warning, if it cannot be captured.

    The call must have been made once before, to compile its kernels and to show how much memory it needs
    (`_make_room`).
    """
    with _one_at_a_time:  # until a failed capture is cleared away
        try:
            with suppress(torch.OutOfMemoryError):
                return _captured(function, pool)
            empty_cache()  # a capture cannot do that itself
            return _captured(function, pool)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            first_line = str(error).split("\n")[0]
            warnings.warn(f"{what} without CUDA graphs, more slowly: {first_line}", stacklevel=3)
            with suppress(RuntimeError):
                _end_capture()
            return None


def _captured(function: Callable[[], Result], pool: Any) -> tuple[torch.cuda.CUDAGraph, Result]:
    graph = torch.cuda.CUDAGraph()
    with _capturing(graph, pool):
        result = function()
    return graph, result


def empty_cache() -> None:
    """`torch.cuda.empty_cache`, but not while another thread captures."""
    with _one_at_a_time:
        torch.cuda.empty_cache()


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, pool: Any, mode: str = "thread_local") -> Iterator[None]:
    """Like `torch.cuda.graph`, which however first returns all cached memory to the driver: with small
    graphs, that and allocating it again takes longer than the capture.

    Only for holders of `_one_at_a_time`. Threads that serve other models go on meanwhile and may allocate
    memory: only this thread is restricted.
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
    """One stream for all captures: matrix products keep a workspace for each stream they have run on."""
    return torch.cuda.Stream(device)


def _make_room() -> None:
    """A graph has its own memory and cannot use what is cached outside. The call before has left as much in
    the cache as this one needs: unless the driver has that much free, it gets the cache back."""
    cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    if cached > torch.cuda.mem_get_info()[0]:
        torch.cuda.empty_cache()


def _end_capture() -> None:
    """After a failed capture the random generator takes itself for captured until another capture succeeds.

    It cannot be replaced: graphs captured before refer to it, and would miss a new seed.
    """
    with _capturing(torch.cuda.CUDAGraph(), None, "relaxed"):
        torch.zeros(1, device="cuda")  # an empty graph would warn

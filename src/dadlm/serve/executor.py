"""Runs untrusted work that may never end, a few pieces at a time, in daemon threads of its own.

asyncio's default pool would be full of it after a few dozen requests, and the process could not exit before
the pool's threads end.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread
from typing import TypeVar

from dadlm.serve.refusals import Refusal

_T = TypeVar("_T")


class DaemonExecutor:
    """Runs `workers` pieces of work at once, others wait. Waiting and work together may take `seconds` (None:
    no limit), then the request is refused; the work itself runs on and keeps its worker."""

    def __init__(self, workers: int, seconds: float | None) -> None:
        self._free, self._seconds = asyncio.Semaphore(workers), seconds

    async def run(self, what: str, work: Callable[[], _T]) -> _T:
        try:
            async with asyncio.timeout(self._seconds):
                await self._free.acquire()  # released by the thread, whether anyone still waits or not
                return await asyncio.wrap_future(self._begin(work))
        except TimeoutError as error:
            message = f"{what} was not finished within this server's time limit"
            raise Refusal(503, message, code="deadline", headers={"retry-after": "1"}) from error

    def _begin(self, work: Callable[[], _T]) -> Future[_T]:
        future, loop = Future[_T](), asyncio.get_running_loop()
        future.set_running_or_notify_cancel()  # so it can no longer be cancelled

        def do() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._free.release)

        try:
            Thread(target=do, daemon=True).start()
        except RuntimeError:  # no more threads: nobody else will release it
            self._free.release()
            raise
        return future

"""Work that others made and that may never end: so much of it at a time, in threads that hold up nothing.

The pool that asyncio has for all work would be full of it after a few dozen requests, and the process could
not leave before its threads do.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread
from typing import TypeVar

from dadlm.serve.refusals import Refusal

_T = TypeVar("_T")


class Apart:
    """`most` pieces of work side by side, while others wait; `seconds` for waiting and work, None: for ever.
    What takes longer is refused; the work itself goes on, and its place is not free."""

    def __init__(self, most: int, seconds: float | None) -> None:
        self._free, self._seconds = asyncio.Semaphore(most), seconds

    async def run(self, what: str, work: Callable[[], _T]) -> _T:
        try:
            async with asyncio.timeout(self._seconds):
                await self._free.acquire()  # and given back by the thread, whether anyone still waits or not
                return await asyncio.wrap_future(self._begin(work))
        except TimeoutError as error:
            message = f"{what} was not finished within this server's time limit"
            raise Refusal(503, message, code="deadline", headers={"retry-after": "1"}) from error

    def _begin(self, work: Callable[[], _T]) -> Future[_T]:
        future, loop = Future[_T](), asyncio.get_running_loop()
        future.set_running_or_notify_cancel()  # from now on it cannot be cancelled

        def do() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._free.release)

        try:
            Thread(target=do, daemon=True).start()
        except RuntimeError:  # no more threads: then nobody else gives the place back
            self._free.release()
            raise
        return future

"""The texts of one HTTP request: submitted together, read as they come, cancelled when nobody waits."""

import asyncio
import math
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, TypeVar

from starlette.requests import Request as HttpRequest

from dadlm.errors import ConfigError
from dadlm.serve.refusals import Refusal
from dadlm.serve.request import Event, Finished, Job, QueueFull, Request, ShuttingDown
from dadlm.serve.scheduler import Scheduler

Result = TypeVar("Result")
_KEEP_ALIVE = 10.0  # seconds of silence after which proxies are shown that somebody is there


class Jobs:
    """All or none: if one text is refused, none is begun."""

    def __init__(self, scheduler: Scheduler, requests: Sequence[Request]) -> None:
        self.jobs: list[Job] = []
        try:
            for request in requests:
                self.jobs.append(scheduler.submit(request))
        except QueueFull as error:
            wait = str(max(1, math.ceil(error.retry_after)))
            raise Refusal(429, str(error), code="queue_full", headers={"retry-after": wait}) from error
        except ShuttingDown as error:
            raise Refusal(503, str(error), code="shutdown") from error
        except ConfigError as error:
            raise Refusal(400, str(error)) from error
        finally:
            if len(self.jobs) < len(requests):
                self.cancel()

    def cancel(self) -> None:
        for job in self.jobs:
            job.cancel()

    async def events(self) -> AsyncIterator[tuple[int, Event] | None]:
        """(which text, what happened) as it comes; None now and then in a long silence.

        A text that cannot be finished ends the others with it: the answer as a whole is lost.
        """
        # Bounded: what the client does not take stays with the job, where the scheduler sees it.
        arrived: asyncio.Queue[tuple[int, Event]] = asyncio.Queue(len(self.jobs))

        async def read(index: int, job: Job) -> None:
            async for event in job:
                await arrived.put((index, event))

        readers = [asyncio.create_task(read(index, job)) for index, job in enumerate(self.jobs)]
        try:
            going_on = len(self.jobs)
            while going_on:
                try:
                    index, event = await asyncio.wait_for(arrived.get(), _KEEP_ALIVE)
                except TimeoutError:
                    yield None
                    continue
                if isinstance(event, Finished):
                    going_on -= 1
                    if event.reason not in ("stop", "length"):
                        raise failure(event)
                yield index, event
        finally:
            for reader in readers:
                reader.cancel()

    async def unless_gone(self, http: HttpRequest, work: Coroutine[Any, Any, Result]) -> Result:
        """What `work` makes of the events, unless the client goes away first."""
        working, gone = asyncio.create_task(work), asyncio.create_task(_gone(http))
        try:
            await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise Refusal(499, "the client has gone")
            return working.result()
        finally:
            working.cancel()
            gone.cancel()
            self.cancel()


def failure(event: Finished) -> Refusal:
    """What a client is told of a text that did not come to its end."""
    if event.reason == "error":
        return Refusal(500, event.message or "the text could not be finished", code="error")
    told = {
        "deadline": "the text was not finished in the time that this server allows",
        "shutdown": "the server is shutting down and could not finish the text; send it again",
        "cancelled": "the text was cancelled",
    }
    return Refusal(503, told[event.reason], code=event.reason, headers={"retry-after": "1"})


async def _gone(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass

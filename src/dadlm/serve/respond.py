"""Submits the requests of one HTTP request and answers it, whole or as server-sent events.

All or nothing: if one of its texts is refused or cannot be finished, the whole HTTP request fails.
"""

import asyncio
import json
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from dadlm.errors import ConfigError
from dadlm.serve.refusals import INTERNAL_ERROR, Refusal
from dadlm.serve.request import Event, Finished, Job, QueueFull, Request, ShuttingDown
from dadlm.serve.scheduler import Scheduler

_KEEP_ALIVE = 10.0  # seconds of silence after which a comment shows proxies that the connection is alive
_UNFINISHED = {
    "deadline": "the text was not finished within this server's time limit",
    "shutdown": "the server is shutting down and could not finish the text; send it again",
    "cancelled": "the text was cancelled",
}


class Answer(ABC):
    """What one HTTP request asks of the scheduler, and the answer that its events add up to."""

    requests: list[Request]

    @abstractmethod
    def take(self, index: int, event: Event) -> list[dict[str, Any]]:
        """Record an event of text `index`; returns the chunks that a stream sends for it."""

    @abstractmethod
    def whole(self) -> dict[str, Any]: ...

    def first_chunks(self) -> list[dict[str, Any]]:
        return []

    def account(self, ends: Sequence[Finished], choices: int = 1) -> dict[str, Any]:
        """Usage and costs; a prompt shared by several `choices` counts once."""
        prompt = sum(end.prompt_tokens for end in ends[::choices])
        new = sum(end.completion_tokens for end in ends)
        each = [
            _cost([end]) | {"seed": request.seed, "seconds_queued": end.seconds_queued}
            for end, request in zip(ends, self.requests, strict=True)
        ]
        return {
            "usage": {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new},
            "dadlm": each[0] if len(each) == 1 else _cost(ends) | {"choices": each},
        }


def _cost(ends: Sequence[Finished]) -> dict[str, Any]:
    passes, cycles = sum(end.forward_passes for end in ends), sum(end.cycles for end in ends)
    tokens = sum(end.completion_tokens for end in ends)
    return {
        "forward_passes": passes,
        "cache_passes": sum(end.cache_passes for end in ends),
        "tokens_per_forward": tokens / max(1, passes),
        "tokens_per_cycle": tokens / cycles if cycles else None,
        "seconds": max(end.seconds_queued + end.seconds_running for end in ends),
    }


async def respond(scheduler: Scheduler, answer: Answer, http: HttpRequest, stream: bool) -> Response:
    jobs = _submit(scheduler, answer.requests)
    if stream:
        return EventStream(answer, jobs)

    async def work() -> None:
        async for item in _events(jobs):
            if item is not None:
                answer.take(*item)

    async def wait_for_disconnect() -> None:
        while (await http.receive())["type"] != "http.disconnect":
            pass

    working, gone = asyncio.create_task(work()), asyncio.create_task(wait_for_disconnect())
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Refusal(499, "the client closed the connection")
        working.result()
        return JSONResponse(answer.whole())
    finally:
        working.cancel()
        gone.cancel()
        _cancel(jobs)


class EventStream(StreamingResponse):
    """Server-sent events: a `data:` line per chunk, then `[DONE]`, after an error event if there was one."""

    def __init__(self, answer: Answer, jobs: Sequence[Job]) -> None:
        headers = {"x-accel-buffering": "no"}  # nginx must not hold lines back
        super().__init__(self._lines(answer, jobs), headers=headers, media_type="text/event-stream")
        self.jobs, self.error = jobs, None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            _cancel(self.jobs)
        if self.error is not None:
            raise self.error  # the client has its error event; this is for the log

    async def _lines(self, answer: Answer, jobs: Sequence[Job]) -> AsyncIterator[str]:
        try:
            for chunk in answer.first_chunks():
                yield _data(chunk)
            async for item in _events(jobs):
                if item is None:
                    yield ": waiting\n\n"  # a comment, which clients skip
                for chunk in answer.take(*item) if item else ():
                    yield _data(chunk)
        except Refusal as refusal:  # too late for a status
            yield _data(refusal.body)
        except Exception as error:
            self.error = error
            yield _data(INTERNAL_ERROR.body)
        yield "data: [DONE]\n\n"


def _data(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps(chunk, ensure_ascii=False, allow_nan=False)}\n\n"


def _submit(scheduler: Scheduler, requests: Sequence[Request]) -> list[Job]:
    jobs: list[Job] = []
    try:
        for request in requests:
            jobs.append(scheduler.submit(request))
    except QueueFull as error:
        wait = str(max(1, math.ceil(error.retry_after)))
        raise Refusal(429, str(error), code="queue_full", headers={"retry-after": wait}) from error
    except ShuttingDown as error:
        raise Refusal(503, str(error), code="shutdown") from error
    except ConfigError as error:
        raise Refusal(400, str(error)) from error
    finally:
        if len(jobs) < len(requests):
            _cancel(jobs)
    return jobs


def _cancel(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job.cancel()


async def _events(jobs: Sequence[Job]) -> AsyncIterator[tuple[int, Event] | None]:
    """(index of the text, event) as they arrive; None after every `_KEEP_ALIVE` seconds of silence.

    What a client does not read stays queued in its job, where the scheduler sees it.
    """
    loop, arrived, unfinished = asyncio.get_running_loop(), asyncio.Event(), dict(enumerate(jobs))

    def notify() -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody reads any more
            loop.call_soon_threadsafe(arrived.set)

    for job in jobs:
        job.listener = notify
    while unfinished:
        arrived.clear()
        new = [(index, event) for index, job in unfinished.items() if (event := job.take())]
        for index, event in new:
            if isinstance(event, Finished):
                del unfinished[index]
                if event.reason == "error":
                    raise Refusal(500, event.message or "the text could not be finished", code="error")
                if event.reason in _UNFINISHED:
                    message, headers = _UNFINISHED[event.reason], {"retry-after": "1"}
                    raise Refusal(503, message, code=event.reason, headers=headers)
            yield index, event
        if not new:
            try:
                await asyncio.wait_for(arrived.wait(), _KEEP_ALIVE)
            except TimeoutError:
                yield None

"""POST /v1/infill: a text with gaps anywhere, filled; whole or as server-sent events."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from dadlm.model import Model
from dadlm.serve.jobs import Jobs
from dadlm.serve.plan import plan_infill
from dadlm.serve.request import Committed, Finished, Request, Traced
from dadlm.serve.schemas import InfillBody
from dadlm.serve.service import Service
from dadlm.serve.sse import WAITING, EventStream, data
from dadlm.serve.text import text_of
from dadlm.serve.usage import cost, progress, usage


async def fill(service: Service, body: InfillBody, http: HttpRequest) -> Response:
    served = service.find(body.model)
    request = await asyncio.to_thread(plan_infill, served.model, body, service.settings)
    jobs = Jobs(served.scheduler, [request])
    answer = Filled(served.name, served.model, request)
    if body.stream:
        return EventStream(answer.stream(jobs), jobs)
    return JSONResponse(await jobs.unless_gone(http, answer.whole(jobs)))


class Filled:
    """The text as far as its gaps are filled."""

    def __init__(self, name: str, model: Model, request: Request) -> None:
        self.tokenizer, self.request = model.tokenizer, request
        self.head = {"id": f"infill-{uuid.uuid4().hex}", "object": "infill", "model": name}
        self.tokens: list[int] = []

    async def whole(self, jobs: Jobs) -> dict[str, Any]:
        account: dict[str, Any] = {}
        async for item in jobs.events():
            if item is not None and isinstance(item[1], Committed):
                self.tokens += item[1].tokens
            elif item is not None and isinstance(item[1], Finished):
                account = self._account(item[1])
        return self._told() | account

    async def stream(self, jobs: Jobs) -> AsyncIterator[str]:
        """After each block the gaps so far; at the end the same object that is sent whole."""
        async for item in jobs.events():
            if item is None:
                yield WAITING
            elif isinstance(item[1], Traced):
                yield data(self.head | {"dadlm": {"step": item[1].event.to_json()}})
            elif isinstance(item[1], Committed):
                self.tokens += item[1].tokens
                so_far = progress(item[1], len(self.tokens))
                yield data(self.head | {"gaps": self._gaps(), "dadlm": so_far})
            else:
                yield data(self._told() | self._account(item[1]))

    def _told(self) -> dict[str, Any]:
        text = text_of(self.tokenizer, self.request.whole(self.tokens))
        return self.head | {"text": text, "gaps": self._gaps()}

    def _account(self, end: Finished) -> dict[str, Any]:
        return {"usage": usage([end]), "dadlm": cost([end], [self.request.seed])}

    def _gaps(self) -> list[str]:
        gaps, done = [], 0
        for _, length in self.request.gaps:
            gaps.append(text_of(self.tokenizer, self.tokens[done : done + length]))
            done += length
        return gaps

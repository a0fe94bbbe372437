"""POST /v1/completions: answers in OpenAI's form, whole or as server-sent events."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from dadlm.serve.jobs import Jobs
from dadlm.serve.plan import Asked, plan_completion
from dadlm.serve.request import Committed, Finished, TokenLogprob, Traced
from dadlm.serve.schemas import CompletionBody
from dadlm.serve.service import Served, Service
from dadlm.serve.sse import WAITING, EventStream, data
from dadlm.serve.text import Pieces, text_of
from dadlm.serve.usage import cost, progress, usage


async def complete(service: Service, body: CompletionBody, http: HttpRequest) -> Response:
    served = service.find(body.model)
    asked = await asyncio.to_thread(plan_completion, served.model, body, service.settings)
    jobs = Jobs(served.scheduler, asked.requests)
    answer = Answer(served, body, asked)
    if body.stream:
        return EventStream(answer.stream(jobs), jobs)
    return JSONResponse(await jobs.unless_gone(http, answer.whole(jobs)))


@dataclass
class Choice:
    """One text as far as it has come."""

    offset: int
    """Characters that are certain so far, for the places of tokens."""
    places: Pieces
    tokens: int = 0
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    end: Finished | None = None


class Answer:
    """The texts of one request, and how they are told."""

    def __init__(self, served: Served, body: CompletionBody, asked: Asked) -> None:
        self.body, self.asked, self.tokenizer = body, asked, served.model.tokenizer
        self.head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": served.name,
        }
        self.choices = [
            Choice(len(before), Pieces(self.tokenizer), pieces=[before]) for before in asked.before
        ]

    async def whole(self, jobs: Jobs) -> dict[str, Any]:
        async for item in jobs.events():
            if item is None:
                continue
            index, event = item
            choice = self.choices[index]
            if isinstance(event, Committed):
                choice.pieces.append(event.text)
                if event.logprobs is not None:
                    choice.logprobs = (choice.logprobs or []) + event.logprobs
            elif isinstance(event, Finished):
                choice.end = event
        told = [
            self._choice(index, "".join(choice.pieces), choice.logprobs, choice.end)
            for index, choice in enumerate(self.choices)
        ]
        return self.head | {"choices": told} | self._account()

    async def stream(self, jobs: Jobs) -> AsyncIterator[str]:
        """A chunk for each piece; the last one with a reason has the account of the whole."""
        for index, before in enumerate(self.asked.before):
            if before:
                yield self._chunk([self._choice(index, before)])
        async for item in jobs.events():
            yield WAITING if item is None else self._line(*item)
        if self.body.stream_options is not None and self.body.stream_options.include_usage:
            yield self._chunk([], **self._account())

    def _line(self, index: int, event: Committed | Traced | Finished) -> str:
        if isinstance(event, Committed):
            self.choices[index].tokens += len(event.tokens)
            so_far = progress(event, self.choices[index].tokens)
            return self._chunk([self._choice(index, event.text, event.logprobs)], dadlm=so_far)
        if isinstance(event, Traced):
            return self._chunk([self._choice(index, "")], dadlm={"step": event.event.to_json()})
        self.choices[index].end = event
        last = all(choice.end is not None for choice in self.choices)
        return self._chunk([self._choice(index, "", end=event)], **(self._account() if last else {}))

    def _choice(
        self,
        index: int,
        text: str,
        logprobs: list[TokenLogprob] | None = None,
        end: Finished | None = None,
    ) -> dict[str, Any]:
        reason = None if end is None else end.reason
        told = None if logprobs is None else self._logprobs(self.choices[index], logprobs)
        return {"index": index, "text": text, "logprobs": told, "finish_reason": reason}

    def _logprobs(self, choice: Choice, tokens: list[TokenLogprob]) -> dict[str, Any]:
        offsets = []
        for token in tokens:
            # Not their own texts joined: half a character has no length, and words are joined by spaces.
            piece = choice.places.add([token.token])[0]
            # Bytes before it that became no character after all are certain only now, and not its own.
            before = _replaced(piece) - _replaced(token.text)
            offsets.append(choice.offset + max(0, before))
            choice.offset += len(piece)
        return {
            "tokens": [self._name(token.token) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{self._name(id_): logp for id_, _, logp in token.top} for token in tokens],
            "text_offset": offsets,
        }

    def _name(self, id_: int) -> str:
        """A token as it stands in the text; where that is nothing or half a character, as people see it."""
        text = text_of(self.tokenizer, [id_])
        if self.tokenizer is None or (text and "\ufffd" not in text):
            return text or str(id_)
        return self.tokenizer.token_text(id_)

    def _account(self) -> dict[str, Any]:
        ends = [choice.end for choice in self.choices if choice.end is not None]
        seeds = [request.seed for request in self.asked.requests]
        return {"usage": usage(ends, self.body.n or 1), "dadlm": cost(ends, seeds)}

    def _chunk(self, choices: list[dict[str, Any]], **more) -> str:
        return data(self.head | {"choices": choices} | more)


def _replaced(text: str) -> int:
    """How many bytes that are no character a text begins with."""
    return len(text) - len(text.lstrip("\ufffd"))

"""Server-sent events: one `data:` line for each JSON object, `[DONE]` at the end."""

import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from dadlm.serve.jobs import Jobs
from dadlm.serve.refusals import MISTAKE, Refusal

WAITING = ": waiting\n\n"  # a comment, which clients skip


def data(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False, allow_nan=False)}\n\n"


class EventStream(StreamingResponse):
    """The events of some jobs. However it ends, they end with it, and the last line is `[DONE]`."""

    def __init__(self, lines: AsyncIterator[str], jobs: Jobs) -> None:
        super().__init__(self._to_the_end(lines), media_type="text/event-stream")
        self.headers["x-accel-buffering"] = "no"  # a proxy must not wait for more
        self.jobs = jobs
        self.mistake: Exception | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.jobs.cancel()
        if self.mistake is not None:
            raise self.mistake  # the client has been told; the log has not

    async def _to_the_end(self, lines: AsyncIterator[str]) -> AsyncIterator[str]:
        try:
            async for line in lines:
                yield line
        except Refusal as refusal:  # the answer has begun: its status can no longer tell
            yield data(refusal.body)
        except Exception as mistake:
            self.mistake = mistake
            yield data(MISTAKE.body)
        yield "data: [DONE]\n\n"

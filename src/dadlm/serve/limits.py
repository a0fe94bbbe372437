"""What a client may ask for: so many requests at a time, each of so many bytes, in so much time."""

import asyncio
from collections import Counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dadlm.serve.refusals import Refusal
from dadlm.serve.settings import ServeSettings

_DROPPED = 16
_PROBES = ("/healthz", "/readyz")  # answered however busy the server is


_BUSY = Refusal(
    503,
    "as many requests are in work as this server takes; try again",
    code="busy",
    headers={"retry-after": "1", "connection": "close"},
)


class Limits:
    """Counts the requests in work, and reads the whole body of each, or says why not."""

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        self.app, self.settings = app, settings
        self.max_body = settings.max_body
        self.active = Counter[str]()  # requests in work, by the client's address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _PROBES:
            return await self.app(scope, receive, send)
        address = scope["client"][0] if scope.get("client") else ""
        everyone, own = self.active.total(), self.active[address]
        if everyone >= self.settings.max_connections or own >= self.settings.most_per_address:
            return await _BUSY.response()(scope, receive, send)
        self.active[address] += 1
        try:
            await self._with_body(scope, receive, send)
        finally:
            self.active[address] -= 1
            if not self.active[address]:
                del self.active[address]

    async def _with_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Nothing works on a body before it is there."""
        try:
            async with asyncio.timeout(self.settings.patience):
                body = await self._read(receive)
        except TimeoutError:
            body = Refusal(408, "the request's body did not come in time", headers={"connection": "close"})
        if isinstance(body, Refusal):
            return await body.response()(scope, receive, send)
        if body is None:
            return  # the client went away
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> Message:
            return waiting.pop() if waiting else await receive()

        await self.app(scope, receive_again, send)

    async def _read(self, receive: Receive) -> bytes | Refusal | None:
        """The body; None if the client went away.

        Some of what is too much is read and dropped: most clients listen only when they have sent all.
        """
        body, size, more = bytearray(), 0, True
        while more and size <= _DROPPED * self.max_body:
            message = await receive()
            if message["type"] != "http.request":
                return None
            size += len(message.get("body", b""))
            if size <= self.max_body:
                body += message.get("body", b"")
            more = message.get("more_body", False)
        if size > self.max_body:
            told = f"the request's body has more than {self.max_body} bytes"
            return Refusal(413, told, param="body", headers={"connection": "close"})
        return bytes(body)

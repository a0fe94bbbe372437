"""What a client may send: so many bytes, in so much time. Nothing works on a body before it is there."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dadlm.serve.refusals import Refusal

_DROPPED = 16


class Limits:
    """Reads the whole body, or says why not."""

    def __init__(self, app: ASGIApp, max_body: int, patience: float) -> None:
        self.app, self.max_body, self.patience = app, max_body, patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        try:
            async with asyncio.timeout(self.patience):
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

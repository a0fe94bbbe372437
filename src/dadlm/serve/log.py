"""One line a request: id, path, status, time. Prompts, keys and unknown paths are not written down."""

import logging
import time
import uuid

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dadlm.serve.refusals import MISTAKE

logger = logging.getLogger("dadlm.serve")

# The page takes nothing from anywhere else, and nobody may frame it or guess at types.
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class RequestLog:
    """Gives each answer an id and the headers that keep browsers careful, and writes its line."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        begin, id_, status = time.perf_counter(), uuid.uuid4().hex, 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers["x-request-id"] = id_
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except Exception as error:  # its text may quote the request: told are its kind and its place
            logger.error("%s %s%s", id_, type(error).__name__, _place(error))
            if not status:
                await MISTAKE.response()(scope, receive, send_with_headers)
        finally:
            seconds = time.perf_counter() - begin
            logger.info("%s %s %s %.3fs", id_, _path(scope, status), status or "gone", seconds)


def _path(scope: Scope, status: int) -> str:
    """Ours as it is; any other may hold anything."""
    path = scope["path"]
    known = any(getattr(route, "path", None) == path for route in scope["app"].routes)
    file = path.startswith("/static/") and 0 < status < 400
    return path if known or file else "unknown"


def _place(error: Exception) -> str:
    frames, frame = [], error.__traceback__
    while frame is not None:
        frames.append(f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}")
        frame = frame.tb_next
    return "".join(f"\n  {place}" for place in frames[-8:])

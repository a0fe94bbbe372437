"""What every request passes before a route sees it: log, access, limits."""

import asyncio
import hmac
import ipaddress
import logging
import time
import uuid
from collections import Counter

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dadlm.serve.refusals import INTERNAL_ERROR, Refusal
from dadlm.serve.settings import ServeSettings

_log = logging.getLogger("dadlm.serve")
# The page loads nothing from elsewhere, and other sites may neither frame it nor read answers.
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_PROBES = ("/healthz", "/readyz")
_WITHOUT_KEY = (*_PROBES, "/", "/openapi.json")  # and the page's files: none holds a secret
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
_MOST_READ = 16  # times max_body: most clients listen only after sending everything


class RequestLog:
    """Logs one line per request: id, path, status, seconds; never prompts, keys or unknown paths."""

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
        except Exception as error:  # its message may quote the request: only its type and place are logged
            _log.error("%s %s%s", id_, type(error).__name__, _frames(error))
            if not status:
                await INTERNAL_ERROR.response()(scope, receive, send_with_headers)
        finally:
            seconds = time.perf_counter() - begin
            _log.info("%s %s %s %.3fs", id_, _known_path(scope, status), status or "gone", seconds)


def _known_path(scope: Scope, status: int) -> str:
    path = scope["path"]
    is_route = any(getattr(route, "path", None) == path for route in scope["app"].routes)
    is_file = path.startswith("/static/") and 0 < status < 400
    return path if is_route or is_file else "unknown"


def _frames(error: Exception) -> str:
    frames, frame = [], error.__traceback__
    while frame is not None:
        frames.append(f"\n  {frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}")
        frame = frame.tb_next
    return "".join(frames[-8:])


class Access:
    """Refuses unknown Host names (DNS rebinding), other origins, and requests without the key."""

    def __init__(self, app: ASGIApp, key: str | None, settings: ServeSettings) -> None:
        self.app, self.settings = app, settings
        self.key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refusal = self._check(scope["path"], scope["method"], Headers(scope=scope))
            if refusal is not None:
                return await refusal.response()(scope, receive, send)
        await self.app(scope, receive, send)

    def _check(self, path: str, method: str, headers: Headers) -> Refusal | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        name, colon, port = host.rpartition(":")
        if not self._is_ours(name if colon and port.isdigit() else host):
            return Refusal(403, "unknown host name: start the server with --allowed-host NAME", param="host")
        is_own_page = origin is None or origin.partition("://")[2] == host
        if not is_own_page and origin not in self.settings.cors_origin:
            message = "origin not allowed: start the server with --cors-origin ORIGIN"
            return Refusal(403, message, param="origin")
        if self.key is None or path in _WITHOUT_KEY or path.startswith("/static/") or method == "OPTIONS":
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        # Compared in constant time.
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self.key):
            return None
        message = "no valid API key: send the header authorization: Bearer KEY"
        return Refusal(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})

    def _is_ours(self, name: str) -> bool:
        """Without a key, only the Host tells our own page from a site whose name points here."""
        settings = self.settings
        if name in (*_LOCAL_NAMES, settings.host, *settings.allowed_host):
            return True
        return not settings.loopback and (self.key is not None or _is_address(name))


def _is_address(name: str) -> bool:
    try:
        return bool(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        return False


class Limits:
    """Bounds the requests in progress, in total and per address, and reads each body within time and size."""

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        self.app, self.settings = app, settings
        self.active = Counter[str]()  # requests in progress by client address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _PROBES:  # probes are always answered
            return await self.app(scope, receive, send)
        address = scope["client"][0] if scope.get("client") else ""
        total, own = self.active.total(), self.active[address]
        if total >= self.settings.max_connections or own >= self.settings.most_per_address:
            headers = {"retry-after": "1", "connection": "close"}
            busy = Refusal(503, "too many requests in progress; try again", code="busy", headers=headers)
            return await busy.response()(scope, receive, send)
        self.active[address] += 1
        try:
            await self._with_body(scope, receive, send)
        finally:
            self.active[address] -= 1
            if not self.active[address]:
                del self.active[address]

    async def _with_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self.settings.patience):
                body = await self._read(receive)
        except TimeoutError:
            body = Refusal(408, "the request's body did not arrive in time", headers={"connection": "close"})
        if isinstance(body, Refusal):
            return await body.response()(scope, receive, send)
        if body is None:
            return
        unread = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> Message:
            return unread.pop() if unread else await receive()

        await self.app(scope, receive_again, send)

    async def _read(self, receive: Receive) -> bytes | Refusal | None:
        """The body; None if the client disconnected."""
        body, size, more, most = bytearray(), 0, True, self.settings.max_body
        while more and size <= _MOST_READ * most:
            message = await receive()
            if message["type"] != "http.request":
                return None
            size += len(message.get("body", b""))
            if size <= most:
                body += message.get("body", b"")
            more = message.get("more_body", False)
        if size > most:
            message = f"the request's body has more than {most} bytes"
            return Refusal(413, message, param="body", headers={"connection": "close"})
        return bytes(body)

"""What every request passes before a route sees it: log, access, limits."""

import asyncio
import hmac
import ipaddress
import logging
import math
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

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
_CLOSE = {"connection": "close"}
_PROBES = ("/healthz", "/readyz")
_WITHOUT_KEY = (*_PROBES, "/", "/docs", "/docs.css", "/openapi.json")  # with /static/: none holds a secret
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
_MOST_READ = 16  # times max_body, to be able to refuse: most clients listen only after sending everything


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
        except Exception as error:  # its message may quote the request: only type and place are logged
            frames = traceback.extract_tb(error.__traceback__)[-8:]
            places = "".join(f"\n  {frame.filename}:{frame.lineno}" for frame in frames)
            _log.error("%s %s%s", id_, type(error).__name__, places)
            if not status:
                await INTERNAL_ERROR.response()(scope, receive, send_with_headers)
        finally:
            seconds = time.perf_counter() - begin
            path = scope["path"]
            is_route = any(getattr(route, "path", None) == path for route in scope["app"].routes)
            is_file = path.startswith("/static/") and 0 < status < 400
            path = path if is_route or is_file else "unknown"
            _log.info("%s %s %s %.3fs", id_, path, status or "gone", seconds)


class Guard:
    """Refuses unknown callers, and requests that are too many, too large or too slow."""

    def __init__(self, app: ASGIApp, key: str | None, settings: ServeSettings) -> None:
        self.app, self.settings = app, settings
        self.key = None if key is None else key.encode()
        self.active = Counter[str]()  # requests in progress by client address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        try:
            self._check_access(scope["path"], scope["method"], Headers(scope=scope))
            if scope["path"] in _PROBES:  # always answered
                return await self.app(scope, receive, send)
            with self._counted(scope["client"][0] if scope.get("client") else ""):
                unread = await self._read(receive)

                async def receive_again() -> Message:
                    return unread.pop() if unread else await receive()

                if unread:
                    await self.app(scope, receive_again, send)
        except Refusal as refusal:
            await refusal.response()(scope, receive, send)

    def _check_access(self, path: str, method: str, headers: Headers) -> None:
        """Refuse unknown Host names (DNS rebinding), other origins, and requests without the key."""
        host, origin = headers.get("host", ""), headers.get("origin")
        name, colon, port = host.rpartition(":")
        if not self._is_ours(name if colon and port.isdigit() else host):
            raise Refusal(403, "unknown host name: start the server with --allowed-host NAME", param="host")
        is_own_page = origin is None or origin.partition("://")[2] == host
        if not is_own_page and origin not in self.settings.cors_origin:
            message = "origin not allowed: start the server with --cors-origin ORIGIN"
            raise Refusal(403, message, param="origin")
        if self.key is None or path in _WITHOUT_KEY or path.startswith("/static/") or method == "OPTIONS":
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self.key):
            message = "no valid API key: send the header authorization: Bearer KEY"
            raise Refusal(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})

    def _is_ours(self, name: str) -> bool:
        """Without a key, only the Host tells our own page from a site whose name points here."""
        ours = (*_LOCAL_NAMES, self.settings.host, *self.settings.allowed_host)
        if name.lower() in map(str.lower, ours):
            return True
        if self.settings.loopback or self.key is not None:
            return not self.settings.loopback
        with suppress(ValueError):
            return bool(ipaddress.ip_address(name.strip("[]")))
        return False

    @contextmanager
    def _counted(self, address: str) -> Iterator[None]:
        most = self.settings.max_connections
        most_of_one = self.settings.max_per_address or math.ceil(3 * most / 4)
        if self.active.total() >= most or self.active[address] >= most_of_one:
            message, headers = "too many requests in progress; try again", {"retry-after": "1"} | _CLOSE
            raise Refusal(503, message, code="busy", headers=headers)
        self.active[address] += 1
        try:
            yield
        finally:
            self.active[address] -= 1
            self.active += Counter()  # drops addresses without requests

    async def _read(self, receive: Receive) -> list[Message]:
        """One message with the whole body; none if the client disconnected."""
        body, size, more, most = bytearray(), 0, True, self.settings.max_body
        try:
            async with asyncio.timeout(self.settings.patience):
                while more and size <= _MOST_READ * most:
                    message = await receive()
                    if message["type"] != "http.request":
                        return []
                    size += len(message.get("body", b""))
                    if size <= most:
                        body += message.get("body", b"")
                    more = message.get("more_body", False)
        except TimeoutError:
            raise Refusal(408, "the request's body did not arrive in time", headers=_CLOSE) from None
        if size > most:
            message = f"the request's body has more than {most} bytes"
            raise Refusal(413, message, param="body", headers=_CLOSE)
        return [{"type": "http.request", "body": bytes(body), "more_body": False}]

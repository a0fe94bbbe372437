"""Who may call: holders of the key, and web pages of this server only, unless others are named."""

import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from dadlm.serve.refusals import Refusal

_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
_OPEN = ("/", "/healthz", "/readyz", "/openapi.json")  # and the page's files; they hold no secret


class Access:
    """Refuses strange hosts (a name that a web page made point here), strange origins and wrong keys."""

    def __init__(
        self, app: ASGIApp, key: str | None, host: str, loopback: bool, origins: Sequence[str]
    ) -> None:
        self.app, self.origins = app, origins
        self.key = None if key is None else key.encode()
        self.hosts = (*_LOCAL_NAMES, host) if loopback else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refusal = self._check(scope["path"], scope["method"], Headers(scope=scope))
            if refusal is not None:
                return await refusal.response()(scope, receive, send)
        await self.app(scope, receive, send)

    def _check(self, path: str, method: str, headers: Headers) -> Refusal | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self.hosts is not None and _name(host) not in self.hosts:
            return Refusal(403, "this server answers to localhost only", param="host")
        own = origin is None or origin.partition("://")[2] == host
        if not own and origin not in self.origins:
            return Refusal(403, "pages of this origin may not call: start with --cors-origin", param="origin")
        if self.key is None or path in _OPEN or path.startswith("/static/") or method == "OPTIONS":
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        # Compared as a whole, in a time that does not tell how much of it was right.
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self.key):
            return None
        return Refusal(
            401,
            "no valid API key: send the header authorization: Bearer KEY",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )


def _name(host: str) -> str:
    """A Host header without its port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host

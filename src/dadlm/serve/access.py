"""Who may call: holders of the key, and web pages of this server only, unless others are named."""

import hmac
import ipaddress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from dadlm.serve.refusals import Refusal
from dadlm.serve.settings import ServeSettings

_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
_OPEN = ("/", "/healthz", "/readyz", "/openapi.json")  # and the page's files; they hold no secret


class Access:
    """Refuses strange hosts (a name that a web page made point here), strange origins and wrong keys."""

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
        if not self._knows(_name(host)):
            told = "this server does not answer to that name: start with --allowed-host NAME"
            return Refusal(403, told, param="host")
        own = origin is None or origin.partition("://")[2] == host
        if not own and origin not in self.settings.cors_origin:
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

    def _knows(self, name: str) -> bool:
        """Without a key only the name tells our own page from one whose name was made to point here."""
        settings = self.settings
        if name in (*_LOCAL_NAMES, settings.host, *settings.allowed_host):
            return True
        return not settings.loopback and (self.key is not None or _is_address(name))


def _is_address(name: str) -> bool:
    """Whom nobody can make point elsewhere."""
    try:
        return bool(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        return False


def _name(host: str) -> str:
    """A Host header without its port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host

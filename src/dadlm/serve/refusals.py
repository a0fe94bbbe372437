"""Errors in the format of OpenAI's API: {"error": {"message", "type", "param", "code"}}."""

import json
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


@dataclass(eq=False)
class Refusal(Exception):  # noqa: N818 - a response, not a bug
    """An error response as an exception; `param` names the field at fault."""

    status: int
    message: str
    param: str | None = field(default=None, kw_only=True)
    code: str | None = field(default=None, kw_only=True)
    headers: dict[str, str] | None = field(default=None, kw_only=True)

    @property
    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        # ASCII only: a message may repeat a lone surrogate that a client sent.
        return Response(json.dumps(self.body), self.status, self.headers, "application/json")


INTERNAL_ERROR = Refusal(500, "internal server error; see the server's log under this request's id")


def add_handlers(app: FastAPI) -> None:
    """Give the framework's own errors the same format."""

    @app.exception_handler(Refusal)
    async def refuse(request: Request, error: Refusal) -> Response:
        return error.response()

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        path, message = request.url.path[:100], str(error.detail)
        if error.status_code == 404:
            message = f"nothing at {path}; GET /docs (or /openapi.json) lists all routes"
        elif error.status_code == 405:
            message = f"{path} does not accept {request.method[:20]}"
        return Refusal(error.status_code, message, headers=dict(error.headers or {})).response()

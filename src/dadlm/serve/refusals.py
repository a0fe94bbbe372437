"""Errors as OpenAI's clients expect them: {"error": {"message", "type", "param", "code"}}."""

import json
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


_NO_CHAT = "these models know no roles, so there is no chat; POST /v1/completions completes a prompt"


class Refusal(Exception):  # noqa: N818 - an answer, not a mistake
    """An answer other than the one asked for; `param` names the field at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.headers = status, message, param, code, headers

    @property
    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        # Escaped, because a message may repeat half a character that a client sent.
        return Response(json.dumps(self.body), self.status, self.headers, "application/json")


MISTAKE = Refusal(500, "the server made a mistake; its log has more under this request's id")


def add_handlers(app: FastAPI) -> None:
    """Give every error of the framework that form."""

    @app.exception_handler(Refusal)
    async def refuse(request: Request, error: Refusal) -> Response:
        return error.response()

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        chat = request.url.path.startswith("/v1/chat")
        said = {
            404: _NO_CHAT
            if chat
            else f"nothing is at {request.url.path[:100]}; GET /openapi.json lists what there is",
            405: f"{request.url.path[:100]} does not take {request.method[:20]}",
        }
        message = said.get(error.status_code, str(error.detail))
        return Refusal(error.status_code, message, headers=dict(error.headers or {})).response()

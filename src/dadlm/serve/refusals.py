"""Errors as OpenAI's clients expect them: {"error": {"message", "type", "param", "code"}}."""

import json
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


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


def add_handlers(app: FastAPI) -> None:
    """Give every error of the framework that form."""

    @app.exception_handler(Refusal)
    async def refuse(request: Request, error: Refusal) -> Response:
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return _of_validation(error).response()

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        said = {
            404: f"nothing is at {request.url.path[:100]}; GET /openapi.json lists what there is",
            405: f"{request.url.path[:100]} does not take {request.method[:20]}",
            400: "the body is not JSON in UTF-8 that can be read",
        }
        message = said.get(error.status_code, str(error.detail))
        return Refusal(error.status_code, message, headers=dict(error.headers or {})).response()


def _of_validation(error: RequestValidationError) -> Refusal:
    """The first fault; of the branches of a union the one that came furthest."""
    fault = max(error.errors(), key=lambda fault: len(fault["loc"]))
    path = fault["loc"][1:]
    if fault["type"] == "json_invalid":
        return Refusal(400, f"the body is not JSON: {fault['ctx']['error']} at character {path[0]}")
    if not path:
        return Refusal(400, "the body must be a JSON object, sent with content-type: application/json")
    param = str(path[0])[:100]
    if fault["type"] == "extra_forbidden":
        where = ".".join(map(str, path))[:200]
        return Refusal(400, f"unknown field {where}", param=param, code="unknown_parameter")
    what = fault["msg"].removeprefix("Value error, ")
    if len(_branches(error, path[0])) > 1:
        what = f"has none of the forms that it may have; the nearest would want: {what}"
    return Refusal(400, f"{param}: {what}", param=param, code="invalid_value")


def _branches(error: RequestValidationError, field: object) -> set[str]:
    """The forms of a union that were tried for a field."""
    places = [fault["loc"] for fault in error.errors() if len(fault["loc"]) > 2 and fault["loc"][1] == field]
    return {place[2] for place in places if isinstance(place[2], str)}

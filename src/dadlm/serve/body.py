"""A request's body, from bytes to a checked object: in a thread, because a large one takes long."""

import asyncio
import json
from email.message import Message
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request

from dadlm.serve.refusals import Refusal

Checked = TypeVar("Checked", bound=BaseModel)


async def read_body(http: Request, schema: type[Checked], turn: asyncio.Lock) -> Checked:
    """The body as `schema` describes it, or a refusal that names the field at fault.

    One at a time (`turn`): threads share one interpreter; several would leave little of it to the event loop.
    """
    content = await http.body()
    async with turn:
        return await asyncio.to_thread(_parse, content, http.headers.get("content-type", ""), schema)


def _parse(content: bytes, content_type: str, schema: type[Checked]) -> Checked:
    if not content or not _is_json(content_type):
        raise Refusal(400, "the body must be a JSON object, sent with content-type: application/json")
    try:
        fields = json.loads(content)
    except json.JSONDecodeError as error:
        raise Refusal(400, f"the body is not JSON: {error.msg} at character {error.pos}") from error
    except (ValueError, RecursionError) as error:
        raise Refusal(400, "the body is not JSON in UTF-8 that can be read") from error
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        raise _refusal(error) from error


def _is_json(content_type: str) -> bool:
    """Web pages of elsewhere can send any other type without asking first."""
    message = Message()
    message["content-type"] = content_type
    kind = message.get_content_subtype()
    return message.get_content_maintype() == "application" and (kind == "json" or kind.endswith("+json"))


def _refusal(error: ValidationError) -> Refusal:
    """The first fault; of the branches of a union the one that came furthest."""
    errors = error.errors(include_url=False, include_input=False)
    # A branch of a union that wants another type says nothing about the one that was meant.
    faults = [fault for fault in errors if not fault["type"].endswith("_type")] or errors
    fault = max(faults, key=lambda fault: len(fault["loc"]))
    if not fault["loc"]:
        return Refusal(400, "the body must be a JSON object, sent with content-type: application/json")
    param = str(fault["loc"][0])[:100]
    if fault["type"] == "extra_forbidden":
        where = ".".join(map(str, fault["loc"]))[:200]
        return Refusal(400, f"unknown field {where}", param=param, code="unknown_parameter")
    what = fault["msg"].removeprefix("Value error, ")
    if len(_branches(faults, fault["loc"][0])) > 1:
        what = f"has none of the forms that it may have; the nearest would want: {what}"
    return Refusal(400, f"{param}: {what}", param=param, code="invalid_value")


def _branches(faults: list[ErrorDetails], field: int | str) -> set[str]:
    """The forms of a union that were tried for a field."""
    places = [fault["loc"] for fault in faults if len(fault["loc"]) > 1 and fault["loc"][0] == field]
    return {place[1] for place in places if isinstance(place[1], str)}

"""Reads and validates a request's JSON body; a refusal names the field at fault."""

import asyncio
import json
import re
from typing import Any

import pydantic
from starlette.requests import Request

from dadlm.serve.refusals import Refusal
from dadlm.serve.schemas import Body

_TYPES = ("str", "int", "float", "bool")
_NOT_AN_OBJECT = "the body must be a JSON object, sent with content-type: application/json"


async def read_body(http: Request, schema: type[Body], lock: asyncio.Lock) -> Any:
    """The body, validated by `schema`.

    Parsed in a thread, because large bodies take long, and one at a time: threads share one interpreter, and
    several would leave little of it to the event loop.
    """
    content = await http.body()
    async with lock:
        return await asyncio.to_thread(_parse, content, http.headers.get("content-type", ""), schema)


def _parse(content: bytes, content_type: str, schema: type[Body]) -> Body:
    kind = content_type.partition(";")[0].strip().lower()
    # Pages of other origins can send some other types without a CORS preflight.
    if not content or not re.fullmatch(r"application/(json|.*\+json)", kind):
        raise Refusal(400, _NOT_AN_OBJECT)
    try:
        return schema.model_validate(json.loads(content))
    except json.JSONDecodeError as error:
        raise Refusal(400, f"the body is not JSON: {error.msg} at character {error.pos}") from error
    except pydantic.ValidationError as error:
        raise _refusal(error) from error
    except (ValueError, RecursionError) as error:
        raise Refusal(400, "the body is not valid JSON in UTF-8") from error


def _refusal(error: pydantic.ValidationError) -> Refusal:
    """For the first error; in a union, for the branch that matched furthest."""
    errors = error.errors(include_url=False, include_input=False)
    # A branch for another type says nothing about the one that was meant.
    errors = [one for one in errors if not one["type"].endswith("_type")] or errors
    first = max(errors, key=lambda one: len(one["loc"]))
    if not (place := first["loc"]):
        return Refusal(400, _NOT_AN_OBJECT)
    param = str(place[0])[:100]
    if first["type"] == "extra_forbidden":
        *inside, name = place  # the client's own name for it
        where = f"{_where(tuple(inside))}.{name}" if inside else str(name)
        return Refusal(400, f"unknown field {where[:200]}", param=param, code="unknown_parameter")
    message = first["msg"].removeprefix("Value error, ")
    branches = {one["loc"][1] for one in errors if len(one["loc"]) > 1 and one["loc"][0] == place[0]}
    if sum(isinstance(branch, str) and not _is_field(branch) for branch in branches) > 1:
        message = f"matches none of the accepted forms; for the closest one: {message}"
    return Refusal(400, f"{_where(place)}: {message}", param=param, code="invalid_value")


def _where(place: tuple[int | str, ...]) -> str:
    """An error's location as messages[0].content, without the branches of unions that pydantic puts in it."""
    return str(place[0])[:100] + "".join(map(_step, place[1:]))


def _step(part: int | str) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part}" if _is_field(part) else ""


def _is_field(part: int | str) -> bool:
    """Fields are in lower case; branches of unions are named after their class or type."""
    return isinstance(part, str) and part.isidentifier() and part.islower() and part not in _TYPES

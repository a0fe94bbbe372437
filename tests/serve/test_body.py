"""What a refusal says of a body's place: the names that were sent, and none of the schemas' own."""

import json
from typing import Any

import pytest

from dadlm.serve.body import _parse
from dadlm.serve.chat_schemas import ChatBody
from dadlm.serve.refusals import Refusal
from dadlm.serve.schemas import Body, CompletionBody, FillGapsBody


def said(schema: type[Body], body: Any) -> str:
    with pytest.raises(Refusal) as caught:
        _parse(json.dumps(body).encode(), "application/json", schema)
    assert caught.value.status == 400
    return caught.value.message


def options(**fields: Any) -> dict[str, Any]:
    return {"prompt": "x", "stream": True, "stream_options": fields}


@pytest.mark.parametrize(
    ("schema", "body", "told"),
    [
        (FillGapsBody, {"parts": ["a", {"gap": 0}]}, "parts[1].gap: Input should be greater"),
        (FillGapsBody, {"parts": ["a", {}]}, "parts[1].gap: Field required"),
        (FillGapsBody, {"parts": ["a", {"Gap": 3}]}, "parts[1].gap: Field required"),
        (FillGapsBody, {"parts": ["a", {"gap": "b"}]}, "parts[1].gap: Input should be a valid integer"),
        (FillGapsBody, {"parts": [{"gap": 1, "more": 2}]}, "unknown field parts[0].more"),
        (FillGapsBody, {"parts": [{"gap": 1, "Gap": 2}]}, "unknown field parts[0].Gap"),
        (FillGapsBody, {"parts": ["a", {"gap": 1}, "\ud83d"]}, "parts[2]: Input should be a valid string"),
        (FillGapsBody, {"parts": ["a", None]}, "parts[1]: Input should be a valid "),
        (CompletionBody, options(include_usage="yes"), "stream_options.include_usage: Input should be a "),
        (CompletionBody, options(include_usage=3, also=1), "unknown field stream_options.also"),
        (CompletionBody, {"prompt": "x", "str": 1}, "unknown field str"),
        (CompletionBody, {"prompt": "x", "Gap": 1}, "unknown field Gap"),
        (CompletionBody, {"prompt": "x", "y" * 300: 1}, "unknown field " + "y" * 200),
        (CompletionBody, {"prompt": "x", "infill": [0, 0.5]}, "infill[0]: Input should be greater"),
        (CompletionBody, {"prompt": "x", "stop": ["a", ""]}, "stop[1]: "),
        (CompletionBody, {"prompt": [1, -2]}, "prompt[1]: "),
        (ChatBody, {"messages": [{"role": "user"}]}, "messages[0].content: Field required"),
        (ChatBody, {"messages": [{"role": "me", "content": "a"}]}, "messages[0].role: Input should be "),
        (
            ChatBody,
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text: Field required",
        ),
        (
            ChatBody,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "b": 1}]}]},
            "unknown field messages[0].content[0].b",
        ),
    ],
    ids=str,
)
def test_the_place_is_named_as_it_was_sent(schema: type[Body], body: Any, told: str) -> None:
    assert said(schema, body).startswith(told)

"""Schemas of POST /v1/chat/completions: requests as OpenAI's clients send them, and answers."""

from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from dadlm.serve.answers import Answer, TextCost, TotalCost, Usage
from dadlm.serve.schemas import (
    MAX_CHARACTERS,
    Body,
    Choices,
    Count,
    Decoding,
    Name,
    Stops,
    StreamOptions,
    Text,
    unsupported,
)

MAX_MESSAGES = 256
MAX_PARTS = 64
_NO_TOOLS = "there are no tools here"


class TextPart(Body):
    type: Literal["text"]
    text: Text


class ChatMessage(Body):
    role: Literal["system", "developer", "user", "assistant"]
    """Who says it; developer is another name for system."""
    content: Text | Annotated[list[TextPart], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)]
    """What is said, or its parts in order."""
    name: Name | None = None
    """Accepted and ignored."""

    # Fields of an answer, which OpenAI's client sends back as a message of the conversation.
    refusal: Annotated[Text | None, unsupported(None, instead="omit it")] = None
    annotations: Annotated[list[Any] | None, unsupported(None, [], instead="omit it")] = None
    audio: Annotated[dict[str, Any] | None, unsupported(None, instead="send text")] = None
    tool_calls: Annotated[list[Any] | None, unsupported(None, [], instead=_NO_TOOLS)] = None
    function_call: Annotated[dict[str, Any] | None, unsupported(None, instead=_NO_TOOLS)] = None

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatBody(Decoding):
    """OpenAI's /v1/chat/completions with our own options."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    """The conversation so far; the answer follows the last message."""
    max_tokens: Count | None = None
    """Tokens to write. Default: 512, or what the context leaves if that is less."""
    max_completion_tokens: Count | None = None
    """The newer name for max_tokens."""
    n: Choices | None = None
    """Number of answers. Default 1."""
    stop: Stops | None = None
    """The answer ends before the first of these."""
    stream_options: StreamOptions | None = None

    frequency_penalty: Annotated[float | None, unsupported(None, 0, instead="omit it")] = None
    presence_penalty: Annotated[float | None, unsupported(None, 0, instead="omit it")] = None
    logit_bias: Annotated[dict[str, float] | None, unsupported(None, {}, instead="omit it")] = None
    logprobs: Annotated[
        bool | None, unsupported(None, False, instead="POST /v1/completions has them, as a number")
    ] = None
    top_logprobs: Annotated[int | None, unsupported(None, 0, instead="omit it")] = None
    response_format: Annotated[
        dict[str, Any] | None, unsupported(None, {"type": "text"}, instead="answers are plain text")
    ] = None
    tools: Annotated[list[Any] | None, unsupported(None, [], instead=_NO_TOOLS)] = None
    tool_choice: Annotated[str | None, unsupported(None, "none", "auto", instead=_NO_TOOLS)] = None

    @pydantic.field_validator("messages")
    @classmethod
    def _not_too_long(cls, messages: list[ChatMessage]) -> list[ChatMessage]:
        if (total := sum(len(message.text) for message in messages)) > MAX_CHARACTERS:
            raise ValueError(f"{total:,} characters together, at most {MAX_CHARACTERS:,} are read")
        return messages

    @pydantic.field_validator("max_completion_tokens")
    @classmethod
    def _said_once(cls, value: int | None, info: pydantic.ValidationInfo) -> int | None:
        if value is not None and info.data.get("max_tokens") not in (None, value):
            raise ValueError("max_tokens says another number; send one of the two")
        return value


class AnswerMessage(Answer):
    role: Literal["assistant"]
    content: str
    refusal: None = None


class ChatChoice(Answer):
    index: int
    message: AnswerMessage
    logprobs: None = None
    finish_reason: Literal["stop", "length"]


class ChatCompletion(Answer):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    dadlm: TextCost | TotalCost

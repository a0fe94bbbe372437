"""What requests to the HTTP API may hold; everything else is refused with the name of the field.

Bounds that do not depend on the model stand here and show in /openapi.json; `plan` checks the others.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

MAX_CHARACTERS = 100_000
MAX_TOKENS = 100_000
MAX_ID = 2**31
MAX_PROMPTS = 64
MAX_PARTS = 256


def _whole(text: str) -> str:
    """JSON can spell half a character, which no tokenizer takes and no answer can repeat."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("holds half a character (a lone surrogate), which is not valid Unicode") from None
    return text


def _as_whole(value: object) -> object:
    """JSON knows one kind of number: 5.0 is as whole as 5."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_WHOLE = BeforeValidator(_as_whole)  # behind the bounds: before them it would hide them from the description
Name = Annotated[str, Field(max_length=256), AfterValidator(_whole)]
Text = Annotated[str, Field(max_length=MAX_CHARACTERS), AfterValidator(_whole)]
Id = Annotated[int, Field(ge=0, lt=MAX_ID), _WHOLE]
Ids = Annotated[list[Id], Field(min_length=1, max_length=MAX_TOKENS, fail_fast=True)]
Stop = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_whole)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=MAX_TOKENS), _WHOLE]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _one_unknown_field_is_enough(cls, fields: Any) -> Any:
        """A body may hold 100,000 of them, and an error for each would take seconds and much memory."""
        if not isinstance(fields, dict) or len(fields) <= len(cls.model_fields):
            return fields
        known = {name: value for name, value in fields.items() if name in cls.model_fields}
        return known | {next(name for name in fields if name not in cls.model_fields): None}


class StreamOptions(Body):
    include_usage: bool = False
    """Send one more chunk without choices that has the usage, as OpenAI does."""


class Decoding(Body):
    """What completing and infilling share. null stands for the default."""

    model: Name | None = None
    """A name that /v1/models lists; the default is the first."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63 - MAX_PROMPTS * 128), _WHOLE] | None = None
    """The same seed, text and settings give the same answer, in any company; choice i has seed + i."""
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    """Divides the logits before a token is drawn; 0 takes the most probable one. Default 1."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Draw from the smallest set of tokens whose probability reaches this. Default 0.9."""
    sampler: Literal["first-hitting", "random", "confidence"] | None = None
    """Which predictions a step keeps: one at random, a random share, or all that are sure enough."""
    steps: Count | None = None
    """Denoising steps per block (random sampler only)."""
    path: Literal["sample", "viterbi", "lookahead"] | None = None
    """Draw a path and its tokens, or take the most probable ones, of the block or node after node."""
    infill: Annotated[tuple[Count, Share], Field(strict=False)] | None = None
    """[k, r]: fill gaps of at most k tokens at once when a share r of the block is known."""
    padded: bool | None = None
    """Nothing but end-of-text follows an end-of-text (models tuned on pairs). Default false."""
    threshold: Share | None = None
    """Confidence from which on the confidence sampler keeps a token. Default 0.9."""
    transition_weight: Share | None = None
    """Share of the transitions in that confidence. Default 0.5."""
    nucleus: Literal["standard", "bd3lm", "position"] | None = None
    """position: top_p cuts off tokens of a position, not of the drawn candidate (DA-DLM); bd3lm leaves out
    the token that crosses top_p."""
    stream: bool | None = None
    """Send pieces as they are committed, as server-sent events."""
    trace: bool | None = None
    """Send every denoising step with its graph too (with stream)."""
    user: Name | None = None
    """Accepted and ignored."""

    @field_validator("steps")
    @classmethod
    def _steps_are_of_the_random_sampler(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("sampler") != "random":
            raise ValueError('belongs to "sampler": "random"; the others take as many as they need')
        return value

    @field_validator("trace")
    @classmethod
    def _trace_is_streamed(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if value and not info.data.get("stream"):
            raise ValueError('needs "stream": true')
        return value


def _unsupported(*neutral: object, instead: str):
    """A field of OpenAI's that only its neutral values may hold: clients send these without being asked."""

    def check(value: object) -> object:
        if isinstance(value, bool) or value not in neutral:
            raise ValueError(f"is not supported: {instead}")
        return value

    return BeforeValidator(check)  # before the type is looked at: a large value has an error for each part


class CompletionBody(Decoding):
    """OpenAI's /v1/completions, and our own options beside it."""

    prompt: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
        | Ids
        | Annotated[list[Ids], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
    )
    """A text, token ids, or a list of either."""
    max_tokens: Count | None = None
    """Tokens to write; null: 128, or what the context leaves if that is less."""
    n: Annotated[int, Field(ge=1, le=128), _WHOLE] | None = None
    """Choices for each prompt. Default 1."""
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = None
    """The text ends before the first of these."""
    logprobs: Annotated[int, Field(ge=0, le=5), _WHOLE] | None = None
    """Log-probability of each token when it was fixed, and so many alternatives."""
    echo: bool | None = None
    """Repeat the prompt before the completion."""
    stream_options: StreamOptions | None = None

    best_of: Annotated[int | None, _unsupported(None, 1, instead="ask for n choices")] = None
    frequency_penalty: Annotated[float | None, _unsupported(None, 0, instead="leave it out")] = None
    presence_penalty: Annotated[float | None, _unsupported(None, 0, instead="leave it out")] = None
    logit_bias: Annotated[dict[str, float] | None, _unsupported(None, {}, instead="leave it out")] = None
    suffix: Annotated[Text | None, _unsupported(None, "", instead="POST /v1/infill fills gaps")] = None

    @field_validator("echo")
    @classmethod
    def _nothing_is_known_of_the_prompt(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if value and info.data.get("logprobs") is not None:
            raise ValueError("cannot go with logprobs: the prompt is not scored")
        return value

    @field_validator("stream_options")
    @classmethod
    def _options_are_of_a_stream(cls, value: StreamOptions | None, info: ValidationInfo):
        if value is not None and not info.data.get("stream"):
            raise ValueError('needs "stream": true')
        return value


class Gap(Body):
    gap: Count
    """Tokens to fill in."""


class InfillBody(Decoding):
    """A text with gaps anywhere."""

    parts: Annotated[list[Text | Gap], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)]
    """Texts and gaps in their order, e.g. ["The ", {"gap": 3}, " sat."]."""

    @field_validator("parts")
    @classmethod
    def _something_to_fill(cls, parts: list[str | Gap]) -> list[str | Gap]:
        if not any(isinstance(part, Gap) for part in parts):
            raise ValueError('holds no gap: write {"gap": 5} where 5 tokens are to be filled in')
        return parts

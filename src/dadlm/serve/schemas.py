"""Schemas of request bodies; bounds that depend on the model are checked by the routes."""

from dataclasses import fields
from typing import Annotated, Any, Literal

import pydantic
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from dadlm.decode import DecodeSettings
from dadlm.decode.samplers import SAMPLERS, SamplerName
from dadlm.decode.settings import MOST_NODES, SUITED_SAMPLER
from dadlm.model import Mode

MAX_CHARACTERS = 100_000
MAX_TOKENS = 100_000
MAX_ID = 2**31
MAX_VOCABULARY = 1_000_000
MAX_PROMPTS = 64
MAX_PARTS = 256


def _unicode(text: str) -> str:
    """JSON can spell lone surrogates, which neither tokenizers nor answers can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("contains half a character (a lone surrogate), which is not valid Unicode") from None
    return text


def _as_integer(value: object) -> object:
    """JSON has a single kind of number: 5.0 is an integer, too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_INTEGER = BeforeValidator(_as_integer)  # after the bounds, or it would hide them from the JSON schema
Name = Annotated[str, Field(max_length=256), AfterValidator(_unicode)]
Text = Annotated[str, Field(max_length=MAX_CHARACTERS), AfterValidator(_unicode)]
Id = Annotated[int, Field(ge=0, lt=MAX_ID), _INTEGER]
Ids = Annotated[list[Id], Field(min_length=1, max_length=MAX_TOKENS, fail_fast=True)]
Stop = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_unicode)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=MAX_TOKENS), _INTEGER]
Likeliest = Annotated[int, Field(ge=1, le=MAX_VOCABULARY), _INTEGER]
Choices = Annotated[int, Field(ge=1, le=128), _INTEGER]
Stops = Stop | Annotated[list[Stop], Field(max_length=4)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _keep_one_unknown_field(cls, fields: Any) -> Any:
        """A body may hold 100,000 of them, and an error for each would take seconds and much memory."""
        if not isinstance(fields, dict) or len(fields) <= len(cls.model_fields):
            return fields
        known = {name: value for name, value in fields.items() if name in cls.model_fields}
        return known | {next(name for name in fields if name not in cls.model_fields): None}


class StreamOptions(Body):
    include_usage: bool = False
    """Send a last chunk with the usage and no choices, as OpenAI does."""


class Decoding(Body):
    """Options of all routes that decode; null is the default."""

    model: Name | None = None
    """A name from /v1/models. Default: the first."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63 - MAX_PROMPTS * 128), _INTEGER] | None = None
    """The same seed, text and settings give the same answer; choice i has seed + i. Default: random."""
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    """Divides the logits before a token is sampled; 0 takes the most probable one. Default 1."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Sample from the smallest set of tokens whose probability reaches this. Default 0.9."""
    top_k: Likeliest | None = None
    """Sample from the k likeliest tokens only. Default: from all."""
    mode: Mode | None = None
    """One of the model's `modes` in /v1/models: diffusion, block by block; ar, token by token; lossless, the
    text of ar in fewer passes. Default: the first of these."""
    sampler: SamplerName | None = Field(
        None,
        description="; ".join(f"{name}: {sampler.summary}" for name, sampler in SAMPLERS.items())
        + f". Default: {SUITED_SAMPLER}",
    )
    steps: Count | None = None
    """Denoising steps per block. Default: half as many as the block has tokens."""
    path: Literal["sample", "viterbi", "lookahead"] | None = None
    """Sample a path and its tokens, or take the most probable ones, of the block or node after node."""
    infill: Annotated[tuple[Count, Fraction], Field(strict=False)] | None = None
    """[k, r]: fill gaps of at most k tokens at once when a fraction r of the block is known."""
    padded: bool | None = None
    """Only end-of-text follows an end-of-text (models finetuned on pairs). Default false."""
    threshold: Fraction | None = None
    """Confidence from which on a token is kept. Default 0.9."""
    transition_weight: Fraction | None = None
    """Weight of the transitions in that confidence. Default 0.5."""
    bound: Annotated[float, Field(ge=0, le=1_000_000)] | None = None
    """Entropy, in nats, that one step may keep. Default 0.5."""
    nucleus: Literal["standard", "bd3lm", "position"] | None = None
    """position: top_p applies to a position's tokens, not to those of the sampled candidate (DA-DLM; its
    default without token edges); bd3lm leaves out the token that crosses top_p."""
    shortlist: Likeliest | None = None
    """M, for models with token edges: draw from the M likeliest tokens without the edges and the likeliest
    successors of the token to the left. Default: from the whole vocabulary."""
    tree: Annotated[int, Field(ge=0, le=MOST_NODES)] | None = None
    """Mode lossless: nodes of the drafts' trees; 0: drawn chains. Default: what is fastest."""
    drawn: bool | None = None
    """Mode lossless: the tokens of the trees are drawn: above temperature 0 more tokens a cycle, and a text
    as likely as in mode ar, but not the same; needs `tree`. Default false."""
    stream: bool | None = None
    """Send each block as it is committed, as server-sent events."""
    trace: bool | None = None
    """Send every denoising step with its graph as well (with stream)."""
    user: Name | None = None
    """Accepted and ignored."""

    @pydantic.field_validator("trace", "stream_options", check_fields=False)
    @classmethod
    def _needs_stream(cls, value: Any, info: ValidationInfo) -> Any:
        if value and not info.data.get("stream"):
            raise ValueError('needs "stream": true')
        return value


def unsupported(*neutral: object, instead: str):
    """A field of OpenAI's API that accepts only its neutral values, which clients send by default."""

    accepted = [(isinstance(one, bool), one) for one in neutral]  # False is equal to 0

    def check(value: object) -> object:
        if (isinstance(value, bool), value) not in accepted:
            raise ValueError(f"is not supported: {instead}")
        return value

    return BeforeValidator(check)  # before the type is checked: a large value has an error for each part


class CompletionBody(Decoding):
    """OpenAI's /v1/completions with our own options."""

    prompt: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
        | Ids
        | Annotated[list[Ids], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
    )
    """A text, token ids, or a list of either."""
    max_tokens: Count | None = None
    """Tokens to generate. Default: 128, or what the context leaves if that is less."""
    n: Choices | None = None
    """Texts per prompt. Default 1."""
    stop: Stops | None = None
    """The text ends before the first of these."""
    logprobs: Annotated[int, Field(ge=0, le=5), _INTEGER] | None = None
    """Return the log-probability of each token when it was fixed, and of this many alternatives."""
    echo: bool | None = None
    """Repeat the prompt before the completion."""
    stream_options: StreamOptions | None = None

    best_of: Annotated[int | None, unsupported(None, 1, instead="use n")] = None
    frequency_penalty: Annotated[float | None, unsupported(None, 0, instead="omit it")] = None
    presence_penalty: Annotated[float | None, unsupported(None, 0, instead="omit it")] = None
    logit_bias: Annotated[dict[str, float] | None, unsupported(None, {}, instead="omit it")] = None
    suffix: Annotated[Text | None, unsupported(None, "", instead="use POST /v1/fill_gaps")] = None

    @pydantic.field_validator("echo")
    @classmethod
    def _not_with_logprobs(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if value and info.data.get("logprobs") is not None:
            raise ValueError("cannot be combined with logprobs: the prompt is not scored")
        return value


class Gap(Body):
    gap: Count
    """How many tokens to fill in."""


class FillGapsBody(Decoding):
    """A text with gaps anywhere."""

    parts: Annotated[list[Text | Gap], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)]
    """Texts and gaps in order, e.g. ["The ", {"gap": 3}, " sat."]."""

    @pydantic.field_validator("parts")
    @classmethod
    def _has_a_gap(cls, parts: list[str | Gap]) -> list[str | Gap]:
        if not any(isinstance(part, Gap) for part in parts):
            raise ValueError('there is no gap: write {"gap": 5} for one of 5 tokens')
        return parts


def describe_samplers() -> list[dict[str, Any]]:
    """All samplers with their options and bounds, for clients that build controls from them."""
    properties = CompletionBody.model_json_schema()["properties"]
    defaults = {field.name: field.default for field in fields(DecodeSettings)}

    def option(name: str) -> dict[str, Any]:
        number = properties[name]["anyOf"][0]
        bounds = {bound: number.get(bound) for bound in ("type", "minimum", "maximum")}
        about = {"description": properties[name]["description"], "default": defaults[name]}
        return {"name": name} | about | bounds

    return [
        {"name": name, "summary": sampler.summary, "options": [option(one) for one in sampler.options]}
        for name, sampler in SAMPLERS.items()
    ]

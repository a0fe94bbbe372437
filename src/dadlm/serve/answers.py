"""Schemas of the answers, for OpenAPI alone: the routes build dicts, and tests check them against these."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from dadlm.model import Mode


class Answer(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class ErrorDetail(Answer):
    message: str
    type: str
    param: str | None
    """The field at fault."""
    code: str | None


class Error(Answer):
    error: ErrorDetail


class Usage(Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Cost(Answer):
    forward_passes: int
    """Denoising passes, without prefill and cache writes."""
    cache_passes: int
    tokens_per_forward: float
    tokens_per_cycle: float | None = None
    """Mode lossless: tokens per verified draft; null in other modes."""
    seconds: float
    """Since the request arrived, waiting included."""


class TextCost(Cost):
    seed: int
    """The same request with this seed gives the same text again."""
    seconds_queued: float


class TotalCost(Cost):
    choices: list[TextCost]


class Logprobs(Answer):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(Answer):
    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length"]


class Completion(Answer):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    dadlm: TextCost | TotalCost


class FilledGaps(Answer):
    id: str
    object: Literal["fill_gaps", "infill"]
    model: str
    text: str
    """The whole text."""
    gaps: list[str]
    """What was filled in, in order."""
    usage: Usage
    dadlm: TextCost


class ModelMetadata(Answer):
    family: Literal["ar", "mdlm", "bd3lm", "dadlm"]
    block_size: int
    candidates: int
    edges: bool
    """Whether a token's probability depends on the one to its left (token edges)."""
    context: int
    modes: list[Mode]
    """What a request's `mode` may be, the default first."""
    parameters: int


class ModelCard(Answer):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    dadlm: ModelMetadata


class Sampler(Answer):
    name: str
    summary: str
    options: list[dict[str, str | float | None]]
    """Fields of a request that only this sampler uses: name, description, type, default, minimum, maximum."""


class Models(Answer):
    object: Literal["list"]
    data: list[ModelCard]
    dadlm: dict[Literal["samplers"], list[Sampler]]

"""What answers of the HTTP API hold. They are written by hand elsewhere; the tests hold them to this."""

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class Fault(Answer):
    message: str
    type: str
    param: str | None
    """The field at fault."""
    code: str | None


class ErrorAnswer(Answer):
    error: Fault


class Usage(Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Cost(Answer):
    forward_passes: int
    """Denoising passes: neither prefill nor cache writes."""
    cache_passes: int
    tokens_per_forward: float
    seconds: float
    """From the request's arrival, waiting included."""


class TextCost(Cost):
    seed: int
    """The same again gives the same text again."""
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


class CompletionAnswer(Answer):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    dadlm: TextCost | TotalCost


class InfillAnswer(Answer):
    id: str
    object: Literal["infill"]
    model: str
    text: str
    """The whole text."""
    gaps: list[str]
    """What was filled in, in order."""
    usage: Usage
    dadlm: TextCost


class ModelFacts(Answer):
    family: Literal["ar", "mdlm", "bd3lm", "dadlm"]
    block_size: int
    candidates: int
    context: int
    parameters: int


class ModelCard(Answer):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    dadlm: ModelFacts


class ModelsAnswer(Answer):
    object: Literal["list"]
    data: list[ModelCard]


class HealthAnswer(Answer):
    status: Literal["ok", "ready"]

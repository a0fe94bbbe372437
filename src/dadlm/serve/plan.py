"""A request's body → what the scheduler is asked, checked against the model.

Every refusal names its field. Nothing here knows of HTTP but the refusals.
"""

import secrets
from dataclasses import dataclass, fields

from dadlm.decode import DecodeSettings
from dadlm.errors import ConfigError, DataError
from dadlm.model import Model, ModelConfig
from dadlm.serve.refusals import Refusal
from dadlm.serve.request import Request
from dadlm.serve.schemas import CompletionBody, Decoding, Gap, InfillBody
from dadlm.serve.settings import ServeSettings
from dadlm.serve.text import text_of


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The texts that one HTTP request asks for, and what stands before each in the answer."""

    requests: list[Request]
    before: list[str]


def plan_completion(model: Model, body: CompletionBody, limits: ServeSettings) -> Asked:
    """n requests for each prompt; request i has the seed that row i of `dadlm.generate` would have."""
    prompts = _prompts(body)
    each = body.n or 1
    most = min(limits.max_choices, limits.max_queue)  # what can never wait together is no case for 429
    if len(prompts) * each > most:
        raise Refusal(400, f"{len(prompts)} prompts × n = {each} are more than {most} texts", param="n")
    settings, seed = _settings(model.config, body, max_new_tokens=body.max_tokens), _seed(body)
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    requests, before = [], []
    for prompt in prompts:
        ids = _ids(model, prompt, "prompt") or [model.config.eot_id]
        _check_room(model.config, len(ids), body.max_tokens)
        text = prompt if isinstance(prompt, str) else text_of(model.tokenizer, prompt)
        for _ in range(each):
            requests.append(
                Request(
                    ids=tuple(ids),
                    settings=settings,
                    seed=seed + len(requests),
                    stop=stop,
                    trace=bool(body.trace),
                    logprobs=body.logprobs,
                    deadline=limits.deadline,
                )
            )
            before.append(text if body.echo else "")
    return Asked(requests=requests, before=before)


def plan_infill(model: Model, body: InfillBody, limits: ServeSettings) -> Request:
    """One text; the tokens at its gaps stand for nothing yet."""
    config = model.config
    if config.family == "ar":
        raise Refusal(
            400, "parts: an autoregressive model cannot fill gaps, it never sees what follows", param="parts"
        )
    ids: list[int] = []
    gaps: list[tuple[int, int]] = []
    for part in body.parts:
        if isinstance(part, Gap):
            # As for an empty prompt: a text that begins with a gap begins after an end of text.
            ids = ids or [config.eot_id]
            gaps.append((len(ids), part.gap))
            ids += [config.eot_id] * min(part.gap, config.context + 1)
        else:
            ids += _ids(model, part, "parts")
        if len(ids) > config.context:
            raise Refusal(
                400, f"parts: more tokens than the context of {config.context} holds", param="parts"
            )
    return Request(
        ids=tuple(ids),
        gaps=tuple(gaps),
        settings=_settings(config, body),
        seed=_seed(body),
        trace=bool(body.trace),
        deadline=limits.deadline,
    )


def _prompts(body: CompletionBody) -> list[str | list[int]]:
    prompt = body.prompt
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [prompt]  # type: ignore[list-item]
    return list(prompt)  # type: ignore[arg-type]


def _settings(config: ModelConfig, body: Decoding, **more) -> DecodeSettings:
    """Our defaults wherever the client says nothing."""
    names = {field.name for field in fields(DecodeSettings)}
    given = {name: value for name, value in body if name in names and value is not None}
    settings = DecodeSettings(**given, **more)
    try:
        settings.check(config)
    except ConfigError as error:  # the one check that needs the model
        raise Refusal(400, str(error), param="steps") from error
    return settings


def _seed(body: Decoding) -> int:
    return secrets.randbits(31) if body.seed is None else body.seed


def _ids(model: Model, prompt: str | list[int], param: str) -> list[int]:
    if not isinstance(prompt, str):
        if max(prompt) >= model.config.mask_id:
            raise Refusal(400, f"{param}: ids must lie in 0..{model.config.mask_id - 1}", param=param)
        return prompt
    if model.tokenizer is None:
        raise Refusal(400, f"{param}: this model has no tokenizer; send token ids", param=param)
    try:
        return model.tokenizer.encode(prompt)
    except DataError as error:
        raise Refusal(400, f"{param}: {error}", param=param) from error


def _check_room(config: ModelConfig, prompt: int, wanted: int | None) -> None:
    room = config.context - prompt
    if room < 1:
        told = f"prompt: {prompt} tokens; the context of {config.context} must leave room for more"
        raise Refusal(400, told, param="prompt", code="context_length_exceeded")
    if wanted is not None and wanted > room:
        told = f"max_tokens: {wanted}, but after {prompt} prompt tokens the context leaves {room}"
        raise Refusal(400, told, param="max_tokens", code="context_length_exceeded")

"""POST /v1/completions: its body becomes requests, their events answers in OpenAI's format."""

import re
import secrets
import time
import uuid
from dataclasses import dataclass, field, fields
from typing import Any

from dadlm.decode import DecodeSettings, StepEvent, settings_for
from dadlm.decode.constants import Constants
from dadlm.decode.events import CycleEvent
from dadlm.errors import ConfigError, DataError
from dadlm.model import Model
from dadlm.serve.refusals import Refusal
from dadlm.serve.request import Committed, Event, Finished, Request, TokenLogprob
from dadlm.serve.respond import Answer
from dadlm.serve.schemas import CompletionBody, Decoding
from dadlm.serve.settings import ServeSettings
from dadlm.tokens.growing_text import TextStream, text_of

_LATER_BYTE = re.compile("<0x[89AB].>")


def request_options(model: Model, body: Decoding, limits: ServeSettings, max_new_tokens: int | None = None):
    """The fields that the requests of all routes share; options left out get what suits the model."""
    names = {field.name for field in fields(DecodeSettings)}
    given = {name: value for name, value in body if name in names and value is not None}
    try:
        settings = settings_for(model.config, given | {"max_new_tokens": max_new_tokens})
        settings.check(model.config)
    except ConfigError as error:
        param = str(error).partition(" ")[0]  # these messages begin with the option's name
        raise Refusal(400, str(error), param=param if param in names else None) from error
    if settings.mode == "lossless" and getattr(body, "logprobs", None):
        message = "logprobs: mode lossless keeps none; ask for the same text with mode ar"
        raise Refusal(400, message, param="logprobs")
    if settings.shortlist is not None and model.head.successors is None:
        Constants().keep_successors(model)  # once; it takes seconds, which this thread may
    seed = secrets.randbits(31) if body.seed is None else body.seed
    return {"settings": settings, "seed": seed, "trace": bool(body.trace), "deadline": limits.deadline}


def encode(model: Model, text: str | list[int], param: str) -> list[int]:
    if not isinstance(text, str):
        if max(text) >= model.config.mask_id:
            raise Refusal(400, f"{param}: ids must be in 0..{model.config.mask_id - 1}", param=param)
        return text
    if model.tokenizer is None:
        raise Refusal(400, f"{param}: this model has no tokenizer; send token ids", param=param)
    try:
        return model.tokenizer.encode(text)
    except DataError as error:
        raise Refusal(400, f"{param}: {error}", param=param) from error


@dataclass
class Choice:
    """One text so far."""

    text: str
    decoder: TextStream
    """Decodes token by token, to find where each begins in the text."""
    offset: int = 0
    """Characters that `decoder` has decoded so far."""
    tokens: int = 0
    logprobs: dict[str, list[Any]] = field(default_factory=dict)
    end: Finished | None = None


class Completion(Answer):
    """n texts for each prompt; text i has the seed that row i of `dadlm.generate` would have."""

    kind, prefix, prompt_param = "text_completion", "cmpl", "prompt"

    def __init__(self, name: str, model: Model, body: CompletionBody, limits: ServeSettings) -> None:
        is_one = isinstance(body.prompt, str) or isinstance(body.prompt[0], int)
        prompts: Any = [body.prompt] if is_one else body.prompt
        self.begin(name, model, body, limits, len(prompts))
        options = request_options(model, body, limits, body.max_tokens) | {"logprobs": body.logprobs}
        ids = [self.fitting(encode(model, prompt, "prompt"), body.max_tokens) for prompt in prompts]
        self.ask(ids, options)
        for i, choice in enumerate(self.choices if body.echo else ()):
            prompt = prompts[i // (body.n or 1)]
            choice.text = prompt if isinstance(prompt, str) else text_of(self.tokenizer, prompt)

    def begin(self, name: str, model: Model, body: Any, limits: ServeSettings, prompts: int) -> None:
        """What is known before anything is encoded."""
        self.body, self.model, self.tokenizer, n = body, model, model.tokenizer, body.n or 1
        most = min(limits.max_choices, limits.max_queue)  # more could never wait together: 429 would be wrong
        if prompts * n > most:
            raise Refusal(400, f"{prompts} prompts × n = {n} are more than {most} texts", param="n")
        id_, now = f"{self.prefix}-{uuid.uuid4().hex}", int(time.time())
        self.head = {"id": id_, "object": self.kind, "created": now, "model": name}

    def ask(self, prompts: list[tuple[int, ...]], options: dict[str, Any]) -> None:
        stop = self.body.stop
        options |= {"batch": self.head["id"], "stop": (stop,) if isinstance(stop, str) else tuple(stop or ())}
        self.requests = [
            Request(ids=prompts[i // (self.body.n or 1)], **options | {"seed": options["seed"] + i})
            for i in range(len(prompts) * (self.body.n or 1))
        ]
        self.choices = [Choice("", TextStream(self.tokenizer)) for _ in self.requests]

    def fitting(self, ids: list[int], wanted: int | None, asked: str = "max_tokens") -> tuple[int, ...]:
        """The prompt, if the context leaves room for as many tokens as are wanted by the field `asked`."""
        config, ids, param = self.model.config, ids or [self.model.config.eot_id], self.prompt_param
        left = config.context - len(ids)
        if left < 1:
            message = f"{param}: {len(ids)} tokens fill the context of {config.context}"
            raise Refusal(400, message, param=param, code="context_length_exceeded")
        if wanted is not None and wanted > left:
            message = f"{asked}: {wanted}, but after {len(ids)} prompt tokens the context leaves {left}"
            raise Refusal(400, message, param=asked, code="context_length_exceeded")
        return tuple(ids)

    @property
    def chunk_head(self) -> dict[str, Any]:
        return self.head

    def first_chunks(self) -> list[dict[str, Any]]:
        return [self.chunk(i, choice.text) for i, choice in enumerate(self.choices) if choice.text]

    def take(self, index: int, event: Event) -> list[dict[str, Any]]:
        choice = self.choices[index]
        if isinstance(event, StepEvent | CycleEvent):
            return [self.chunk(index, dadlm={"step": event.to_json()})]
        if isinstance(event, Committed):
            choice.text += event.text
            choice.tokens += len(event.tokens)
            logprobs = None if event.logprobs is None else self._logprobs(choice, event.logprobs)
            so_far = {"forward_passes": event.forward_passes, "tokens": choice.tokens}
            return [self.chunk(index, event.text, logprobs, dadlm=so_far)]
        choice.end = event
        if any(choice.end is None for choice in self.choices):
            return [self.chunk(index, reason=event.reason)]
        account, options = self._account(), self.body.stream_options
        usage = [self.chunk_head | {"choices": []} | account] if options and options.include_usage else []
        return [self.chunk(index, reason=event.reason, **account), *usage]

    def whole(self) -> dict[str, Any]:
        choices = [self.choice(index, one) for index, one in enumerate(self.choices)]
        return self.head | {"choices": choices} | self._account()

    def choice(self, index: int, one: Choice) -> dict[str, Any]:
        return _choice(index, one.text, one.logprobs or None, one.end and one.end.reason)

    def _account(self) -> dict[str, Any]:
        return self.account([one.end for one in self.choices if one.end is not None], self.body.n or 1)

    def chunk(self, index: int, text: str = "", logprobs=None, reason: str | None = None, **more: Any):
        return self.chunk_head | {"choices": [_choice(index, text, logprobs, reason)]} | more

    def _logprobs(self, choice: Choice, tokens: list[TokenLogprob]) -> dict[str, list[Any]]:
        """Of new tokens; they are added to the choice's own."""
        offsets = []
        for token in tokens:
            # The tokens' own texts do not add up: half a character has none, and spaces join words.
            before = choice.decoder.undecided
            piece = choice.decoder.add([token.token])[0]
            after = piece + choice.decoder.undecided
            name = self._name(token.token) if text_of(self.tokenizer, [token.token]) else ""
            offsets.append(choice.offset + _begin(before, after, name))
            choice.offset += len(piece)
        new = {
            "tokens": [self._name(token.token) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{self._name(id_): logp for id_, logp in token.top} for token in tokens],
            "text_offset": offsets,
        }
        for name, values in new.items():
            choice.logprobs.setdefault(name, []).extend(values)
        return new

    def _name(self, id_: int) -> str:
        """A token as it stands in the text; if that is empty or half a character, in readable form."""
        text = text_of(self.tokenizer, [id_])
        if self.tokenizer is None or (text and "\ufffd" not in text):
            return text or str(id_)
        return self.tokenizer.token_text(id_)


def _choice(index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def _begin(before: str, after: str, name: str) -> int:
    """Where a token begins in the undecided end of a text, which is `before` without it and `after` with it.

    A character that it completes or continues began in an earlier token. `name` is empty if the token has no
    text.
    """
    if not name:
        return len(before)
    if _LATER_BYTE.fullmatch(name):  # byte fallback shows every byte of an open character
        return 0
    if after == before:
        return max(0, len(before) - 1)
    return min(len(before), len(after) - len(after.lstrip("\ufffd")))

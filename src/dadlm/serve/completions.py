"""POST /v1/completions: what OpenAI's completions ask the scheduler, and the answer in their format."""

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from dadlm.serve.body import encode, seed_of, settings_of
from dadlm.serve.refusals import Refusal
from dadlm.serve.request import Committed, Event, Finished, Request, TokenLogprob, Traced
from dadlm.serve.respond import Answer
from dadlm.serve.schemas import CompletionBody
from dadlm.serve.service import Served
from dadlm.serve.settings import ServeSettings
from dadlm.serve.text import Pieces, text_of


@dataclass
class Choice:
    """One text so far."""

    text: str
    pieces: Pieces
    """Decodes token by token, to find the place of each in the text."""
    offset: int
    """Characters of the text that `pieces` has decoded."""
    tokens: int = 0
    logprobs: dict[str, list[Any]] = field(default_factory=dict)
    end: Finished | None = None


class Completion(Answer):
    """n texts for each prompt; text i has the seed that row i of `dadlm.generate` would have."""

    def __init__(self, served: Served, body: CompletionBody, limits: ServeSettings) -> None:
        self.body, self.model, self.tokenizer = body, served.model, served.model.tokenizer
        self.requests, self.choices = [], []
        prompts, n = _prompts(body), body.n or 1
        most = min(limits.max_choices, limits.max_queue)  # more can never wait together: not a case for 429
        if len(prompts) * n > most:
            raise Refusal(400, f"{len(prompts)} prompts × n = {n} are more than {most} texts", param="n")
        settings, seed = settings_of(served.model, body, body.max_tokens), seed_of(body)
        for prompt in prompts:
            ids = self._prompt_ids(prompt)
            before = prompt if isinstance(prompt, str) else text_of(self.tokenizer, prompt)
            before = before if body.echo else ""
            for _ in range(n):
                request = Request(
                    ids=ids,
                    settings=settings,
                    seed=seed + len(self.requests),
                    stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
                    trace=bool(body.trace),
                    logprobs=body.logprobs,
                    deadline=limits.deadline,
                )
                self.requests.append(request)
                self.choices.append(Choice(before, Pieces(self.tokenizer), len(before)))
        self.head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": served.name,
        }

    def _prompt_ids(self, prompt: str | list[int]) -> tuple[int, ...]:
        config, wanted = self.model.config, self.body.max_tokens
        ids = encode(self.model, prompt, "prompt") or [config.eot_id]
        left = config.context - len(ids)
        if left < 1:
            message = f"prompt: {len(ids)} tokens fill the context of {config.context}"
            raise Refusal(400, message, param="prompt", code="context_length_exceeded")
        if wanted is not None and wanted > left:
            message = f"max_tokens: {wanted}, but after {len(ids)} prompt tokens the context leaves {left}"
            raise Refusal(400, message, param="max_tokens", code="context_length_exceeded")
        return tuple(ids)

    def first_chunks(self) -> list[dict[str, Any]]:
        return [self._chunk(i, choice.text) for i, choice in enumerate(self.choices) if choice.text]

    def take(self, index: int, event: Event) -> dict[str, Any]:
        choice = self.choices[index]
        if isinstance(event, Traced):
            return self._chunk(index, dadlm={"step": event.event.to_json()})
        if isinstance(event, Committed):
            choice.text += event.text
            choice.tokens += len(event.tokens)
            logprobs = None if event.logprobs is None else self._logprobs(choice, event.logprobs)
            so_far = {"forward_passes": event.forward_passes, "tokens": choice.tokens}
            return self._chunk(index, event.text, logprobs, dadlm=so_far)
        choice.end = event
        last = all(choice.end is not None for choice in self.choices)
        return self._chunk(index, reason=event.reason, **(self._account() if last else {}))

    def last_chunks(self) -> list[dict[str, Any]]:
        options = self.body.stream_options
        return [self.head | {"choices": []} | self._account()] if options and options.include_usage else []

    def whole(self) -> dict[str, Any]:
        choices = [
            _choice(index, one.text, one.logprobs or None, one.end and one.end.reason)
            for index, one in enumerate(self.choices)
        ]
        return self.head | {"choices": choices} | self._account()

    def _account(self) -> dict[str, Any]:
        ends = [choice.end for choice in self.choices if choice.end is not None]
        return self.account(ends, self.body.n or 1)

    def _chunk(self, index: int, text: str = "", logprobs=None, reason: str | None = None, **more: Any):
        return self.head | {"choices": [_choice(index, text, logprobs, reason)]} | more

    def _logprobs(self, choice: Choice, tokens: list[TokenLogprob]) -> dict[str, list[Any]]:
        """Those of new tokens, which are added to those of the choice."""
        offsets = []
        for token in tokens:
            # Not the tokens' own texts: half a character has no length, and spaces join words.
            piece = choice.pieces.add([token.token])[0]
            # Earlier bytes that turned out to be no character are decided only now, and are not its own.
            before = _replaced(piece) - _replaced(token.text)
            offsets.append(choice.offset + max(0, before))
            choice.offset += len(piece)
        new = {
            "tokens": [self._name(token.token) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{self._name(id_): logp for id_, _, logp in token.top} for token in tokens],
            "text_offset": offsets,
        }
        for name, values in new.items():
            choice.logprobs.setdefault(name, []).extend(values)
        return new

    def _name(self, id_: int) -> str:
        """A token as it is in the text; if that is empty or half a character, in readable form."""
        text = text_of(self.tokenizer, [id_])
        if self.tokenizer is None or (text and "\ufffd" not in text):
            return text or str(id_)
        return self.tokenizer.token_text(id_)


def _prompts(body: CompletionBody) -> list[str | list[int]]:
    prompt = body.prompt
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [prompt]  # type: ignore[list-item]
    return list(prompt)  # type: ignore[arg-type]


def _choice(index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def _replaced(text: str) -> int:
    """How many replacement characters, of bytes that are no character, a text begins with."""
    return len(text) - len(text.lstrip("\ufffd"))

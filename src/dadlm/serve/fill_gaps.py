"""POST /v1/fill_gaps: a text with gaps anywhere, filled in."""

import uuid
from typing import Any

from dadlm.serve.body import encode, seed_of, settings_of
from dadlm.serve.refusals import Refusal
from dadlm.serve.request import Committed, Event, Finished, Request, Traced
from dadlm.serve.respond import Answer
from dadlm.serve.schemas import FillGapsBody, Gap
from dadlm.serve.service import Served
from dadlm.serve.settings import ServeSettings
from dadlm.serve.text import text_of


class FilledGaps(Answer):
    def __init__(
        self, served: Served, body: FillGapsBody, limits: ServeSettings, name: str = "fill_gaps"
    ) -> None:
        self.model, self.tokens, self.end = served.model, [], None
        ids, gaps = self._positions(body)
        self.request = Request(
            ids=tuple(ids),
            gaps=tuple(gaps),
            settings=settings_of(served.model, body),
            seed=seed_of(body),
            trace=bool(body.trace),
            deadline=limits.deadline,
        )
        self.requests = [self.request]
        self.head = {"id": f"{name}-{uuid.uuid4().hex}", "object": name, "model": served.name}

    tokens: list[int]
    """Those of the gaps so far."""
    end: Finished | None

    def _positions(self, body: FillGapsBody) -> tuple[list[int], list[tuple[int, int]]]:
        """The tokens of the whole text, with placeholders in the gaps, and (first, length) of each gap."""
        config = self.model.config
        if config.family == "ar":
            raise Refusal(400, "parts: an autoregressive model cannot fill gaps", param="parts")
        ids: list[int] = []
        gaps: list[tuple[int, int]] = []
        for part in body.parts:
            if isinstance(part, Gap):
                # As an empty prompt: a text that begins with a gap begins after an end-of-text.
                ids = ids or [config.eot_id]
                gaps.append((len(ids), part.gap))
                ids += [config.eot_id] * min(part.gap, config.context + 1)
            else:
                ids += encode(self.model, part, "parts")
            if len(ids) > config.context:
                message = f"parts: more tokens than the context of {config.context}"
                raise Refusal(400, message, param="parts")
        return ids, gaps

    def take(self, index: int, event: Event) -> dict[str, Any]:
        """After each block the gaps so far; at the end the whole answer."""
        if isinstance(event, Traced):
            return self.head | {"dadlm": {"step": event.event.to_json()}}
        if isinstance(event, Committed):
            self.tokens += event.tokens
            so_far = {"forward_passes": event.forward_passes, "tokens": len(self.tokens)}
            return self.head | {"gaps": self._gaps(), "dadlm": so_far}
        self.end = event
        return self.whole()

    def whole(self) -> dict[str, Any]:
        assert self.end is not None
        text = text_of(self.model.tokenizer, self.request.whole(self.tokens))
        return self.head | {"text": text, "gaps": self._gaps()} | self.account([self.end])

    def _gaps(self) -> list[str]:
        texts, done = [], 0
        for _, length in self.request.gaps:
            texts.append(text_of(self.model.tokenizer, self.tokens[done : done + length]))
            done += length
        return texts

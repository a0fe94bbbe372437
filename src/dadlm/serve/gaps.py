"""POST /v1/fill_gaps: fills gaps anywhere in a text."""

import uuid
from typing import Any

from dadlm.decode import StepEvent
from dadlm.decode.events import CycleEvent
from dadlm.model import Model
from dadlm.serve.refusals import Refusal
from dadlm.serve.request import Committed, Event, Request
from dadlm.serve.respond import Answer
from dadlm.serve.routes import encode, request_options
from dadlm.serve.schemas import FillGapsBody, Gap
from dadlm.serve.settings import ServeSettings
from dadlm.tokens.growing_text import text_of


class FilledGaps(Answer):
    """The gaps of one text."""

    def __init__(
        self, name: str, model: Model, body: FillGapsBody, limits: ServeSettings, kind: str = "fill_gaps"
    ) -> None:
        self.model, self.end = model, None
        self.tokens: list[int] = []  # those of the gaps so far
        ids, gaps = self._positions(body)
        options = request_options(model, body, limits)
        self.requests = [Request(ids=tuple(ids), gaps=tuple(gaps), **options)]
        self.head = {"id": f"{kind}-{uuid.uuid4().hex}", "object": kind, "model": name}

    def _positions(self, body: FillGapsBody) -> tuple[list[int], list[tuple[int, int]]]:
        """The tokens of the whole text, with placeholders in the gaps, and (first, length) of each gap."""
        config = self.model.config
        if config.family == "ar":
            raise Refusal(400, "parts: an autoregressive model cannot fill gaps", param="parts")
        ids: list[int] = []
        gaps: list[tuple[int, int]] = []
        for part in body.parts:
            if isinstance(part, Gap):
                # A text that begins with a gap follows an end-of-text, as an empty prompt does.
                ids = ids or [config.eot_id]
                gaps.append((len(ids), part.gap))
                ids += [config.eot_id] * min(part.gap, config.context + 1)
            else:
                ids += encode(self.model, part, "parts")
            if len(ids) > config.context:
                raise Refusal(400, f"parts: more tokens than the context of {config.context}", param="parts")
        return ids, gaps

    def take(self, index: int, event: Event) -> list[dict[str, Any]]:
        """After each block the gaps so far; at the end the whole answer."""
        if isinstance(event, StepEvent | CycleEvent):
            return [self.head | {"dadlm": {"step": event.to_json()}}]
        if isinstance(event, Committed):
            self.tokens += event.tokens
            so_far = {"forward_passes": event.forward_passes, "tokens": len(self.tokens)}
            return [self.head | {"gaps": self._gaps()[0], "dadlm": so_far}]
        self.end = event
        return [self.whole()]

    def whole(self) -> dict[str, Any]:
        assert self.end is not None
        gaps, text = self._gaps()
        return self.head | {"text": text, "gaps": gaps} | self.account([self.end])

    def _gaps(self) -> tuple[list[str], str]:
        """The texts of the gaps and of the whole, as far as they are filled."""
        gaps, ids, rest = [], list(self.requests[0].ids), self.tokens
        for first, length in self.requests[0].gaps:
            filled, rest = rest[:length], rest[length:]
            gaps.append(text_of(self.model.tokenizer, filled))
            ids[first : first + len(filled)] = filled
        return gaps, text_of(self.model.tokenizer, ids)

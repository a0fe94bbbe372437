"""A request in progress: its row in the engine, the text given out so far, and its times."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch

from dadlm.decode.events import StepEvent, best_of, event_of, logits_at
from dadlm.decode.request import Row
from dadlm.decode.step import Step
from dadlm.errors import ConfigError
from dadlm.model import Model
from dadlm.serve.request import FAILED, Committed, Finished, Job, Reason, TokenLogprob
from dadlm.tokens.growing_text import TextStream

_UNREAD_STEPS = 256  # traced steps of about 50 kB that may queue up for a client that does not read
_TOKENS_SHOWN = 3  # of each node in a trace
_DIGITS = 5  # of a probability; a trace consists mostly of these
_ROUNDED = ("top_tokens", "transition", "probability", "alone")


class Task:
    """Times are seconds of the scheduler's clock."""

    def __init__(self, model: Model, job: Job, now: float) -> None:
        if job.request.stop and model.tokenizer is None:
            raise ConfigError("stop texts need a tokenizer, which this model does not have")
        self.job, self.request, self.row = job, job.request, Row(model, job.request)
        self.text = TextStream(model.tokenizer, job.request.stop)
        self.batch: object = self if job.request.batch is None else job.request.batch
        self.tokens = 0
        self.logprobs: dict[int, TokenLogprob] = {}
        """Of the current block, by position."""
        self.submitted = now
        self.joined: float | None = None
        self.first_commit: float | None = None

    def must_end(self, now: float) -> tuple[Reason, str | None] | None:
        """Why the text must end before it is finished, if it must."""
        deadline = self.request.deadline
        if self.job.cancelled:
            return "cancelled", None
        if self.job.failed:
            return "error", FAILED
        if self.request.trace and self.job.unread > _UNREAD_STEPS:
            return "cancelled", "nobody reads its steps"
        if deadline is not None and now >= self.submitted + deadline:
            return "deadline", f"not finished within {deadline:g} seconds"
        return None

    @torch.inference_mode()
    def observe(self, model: Model, step: Step, index: int) -> Callable[[], StepEvent] | None:
        """Take the log-probabilities that the client asked for from row `index` of a step; for a traced
        request, returns a function that makes its event, at any time and in any thread."""
        if self.request.logprobs is not None:
            self.logprobs |= _logprobs(model, _row_of(step, index, self.row.block), self.request.logprobs)
        if not self.request.trace:
            return None
        return partial(_event, model, _row_of(step, index, self.row.block, copy=True))

    def commit(self, positions: list[int], now: float) -> tuple[Committed, Reason | None]:
        """What the client gets for newly committed positions, and why the text ends, if it does."""
        text, positions, reason = self._text_of(positions, self.row.finished)
        logprobs = None if self.request.logprobs is None else [self.logprobs[p] for p in positions]
        self.tokens += len(positions)
        self.logprobs = {}
        self.first_commit = now if self.first_commit is None else self.first_commit
        tokens = [self.row.ids[p] for p in positions]
        return Committed(tokens, text, logprobs, self.row.forward_passes), reason

    def _text_of(self, new: list[int], reason: Reason | None) -> tuple[str, list[int], Reason | None]:
        """The text of new positions, and the positions, up to a stop text if one ends them."""
        if self.request.gaps:
            return self._text_of_gaps(new), new, reason
        text, used = self.text.add([self.row.ids[p] for p in new])
        if used is not None:
            return text, new[:used], "stop"
        if reason is not None:
            rest, stopped = self.text.end()
            return text + rest, new, "stop" if stopped else reason
        return text, new, None

    def _text_of_gaps(self, new: list[int]) -> str:
        """Each gap is decoded by itself: half a character at its end is never completed."""
        ends, text = {first + length - 1 for first, length in self.row.gaps}, ""
        for position in new:
            text += self.text.add([self.row.ids[position]])[0]
            if position in ends:
                text += self.text.end()[0]
        return text

    def finished(self, reason: Reason, now: float, message: str | None = None) -> Finished:
        started, row = now if self.joined is None else self.joined, self.row
        return Finished(
            reason=reason,
            message=message,
            prompt_tokens=row.prompt - (row.new_tokens if row.gaps else 0),
            completion_tokens=self.tokens,
            forward_passes=row.forward_passes + row.passes_of_block,
            cache_passes=row.cache_passes,
            cycles=row.cycles,
            seconds_queued=started - self.submitted,
            seconds_running=now - started,
            seconds_to_first=None if self.first_commit is None else self.first_commit - self.submitted,
        )


def _row_of(part: Any, row: int, width: int, copy: bool = False) -> Any:
    """One row of a step and of all tensors in it; `width` cuts off the padding of a shorter MDLM window. A
    copy stays valid after the step."""
    if part is None:  # the model has no such part
        return None
    if isinstance(part, torch.Tensor):
        own = part[row : row + 1] if part.dim() == 1 else part[row : row + 1, :width]
        return own.clone() if copy else own
    return replace(part, **{f.name: _row_of(getattr(part, f.name), row, width, copy) for f in fields(part)})


def _event(model: Model, step: Step) -> StepEvent:
    event = event_of(model, step, _TOKENS_SHOWN)
    return replace(event, **{name: _rounded(getattr(event, name)) for name in _ROUNDED})


def _rounded(part: Any) -> Any:
    if isinstance(part, float):
        return round(part, _DIGITS)
    return (
        [_rounded(one) for one in part] if isinstance(part, Sequence) and not isinstance(part, str) else part
    )


def _logprobs(model: Model, step: Step, count: int) -> dict[int, TokenLogprob]:
    """Of the tokens that a step of one row has fixed, by position."""
    place = step.kept[0].nonzero().squeeze(1)
    logp = logits_at(model, step, 0, place).log_softmax(-1)
    best_logp, best = best_of(logp, count)
    tokens = step.ids[0, place]
    columns = (step.block.first[0] + place, tokens, logp.gather(1, tokens[:, None]).squeeze(1))
    columns += (best, best_logp)
    return {
        position: TokenLogprob(token, p, list(zip(ids, ps, strict=True)))
        for position, token, p, ids, ps in zip(*(column.tolist() for column in columns), strict=True)
    }

"""A request of a client in work: the engine's row, the text given away so far, and when things happened."""

from dadlm.decode.engine import Committed as CommittedTokens
from dadlm.decode.request import Row
from dadlm.errors import ConfigError
from dadlm.model import Model
from dadlm.serve.request import Committed, Finished, Job, Reason, TokenLogprob
from dadlm.serve.text import Pieces


class Task:
    """Times are seconds of the scheduler's clock."""

    def __init__(self, model: Model, job: Job, now: float) -> None:
        if job.request.stop and model.tokenizer is None:
            raise ConfigError("stop texts need a tokenizer, which this model does not have")
        self.job, self.request, self.row = job, job.request, Row(model, job.request)
        self.pieces = Pieces(model.tokenizer, job.request.stop)
        self.tokens: list[int] = []
        self.logprobs: dict[int, TokenLogprob] = {}
        """Of the block in work, by position."""
        self.submitted = now
        self.joined: float | None = None
        self.first_commit: float | None = None

    def commit(self, new: CommittedTokens, now: float) -> tuple[Committed, Reason | None]:
        """What the client gets of tokens that were committed, and why the text ends, if it does."""
        text, positions, reason = self._text_of(new.positions, self.row.finished)
        logprobs = None
        if self.request.logprobs is not None:
            logprobs = [self.logprobs[p] for p in positions]
        tokens = [self.row.ids[p] for p in positions]
        self.tokens += tokens
        self.logprobs = {}
        self.first_commit = now if self.first_commit is None else self.first_commit
        return Committed(tokens, text, logprobs, self.row.forward_passes), reason

    def _text_of(self, new: list[int], reason: Reason | None) -> tuple[str, list[int], Reason | None]:
        """The text of new positions; where a stop text ends them, they end too."""
        if self.request.gaps:
            return self._text_of_gaps(new), new, reason
        text, used = self.pieces.add([self.row.ids[p] for p in new])
        if used is not None:
            return text, new[:used], "stop"
        if reason is not None:
            rest, stopped = self.pieces.end()
            return text + rest, new, "stop" if stopped else reason
        return text, new, None

    def _text_of_gaps(self, new: list[int]) -> str:
        """A gap's text stands alone: half a character at its end has no other half."""
        ends, text = {first + length - 1 for first, length in self.row.gaps}, ""
        for position in new:
            text += self.pieces.add([self.row.ids[position]])[0]
            if position in ends:
                text += self.pieces.end()[0]
        return text

    def finished(self, reason: Reason, now: float, message: str | None = None) -> Finished:
        started = now if self.joined is None else self.joined
        row = self.row
        return Finished(
            reason=reason,
            message=message,
            prompt_tokens=row.prompt - (row.new_tokens if row.gaps else 0),
            completion_tokens=len(self.tokens),
            forward_passes=row.forward_passes + row.passes_of_block,
            cache_passes=row.cache_passes,
            seconds_queued=started - self.submitted,
            seconds_running=now - started,
            seconds_to_first=None if self.first_commit is None else self.first_commit - self.submitted,
        )

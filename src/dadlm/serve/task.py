"""A request in work: its text so far, what is known and what is open, and what was given to its client.

Lives on the host; `batch` has the block in work on the device. A task can be taken out of a batch at any time
and put into another: it reads its text again and does its block again, with the same random numbers.
"""

from dadlm.decode.fill import start_gaps
from dadlm.decode.generate import start_rows
from dadlm.decode.rows import Row
from dadlm.errors import ConfigError
from dadlm.model import Model
from dadlm.serve.request import Committed, Finished, Job, Reason, Request, TokenLogprob
from dadlm.serve.text import Pieces


def row_of(model: Model, request: Request) -> Row:
    """Check a request against the model."""
    if request.stop and model.tokenizer is None:
        raise ConfigError("stop texts need a tokenizer, which this model does not have")
    if request.gaps:
        return start_gaps(model, request.ids, request.gaps, request.settings, request.seed)
    return start_rows(model, [request.ids], request.settings, request.seed)[0]


class Task:
    """See the module's text. Times are seconds of the scheduler's clock."""

    def __init__(self, model: Model, job: Job, now: float) -> None:
        self.job, self.request, self.settings = job, job.request, job.request.settings
        self.config, self.tokenizer = model.config, model.tokenizer
        self.row = row_of(model, job.request)
        self.is_window = model.config.family == "mdlm"
        self.block = self.row.length if self.is_window else model.config.block
        width = -(-self.row.length // self.block) * self.block
        self.ids = [*self.row.prompt, *[model.config.eot_id] * (width - len(self.row.prompt))]
        self.open = self.row.is_open(width)
        self.first = 0 if self.is_window else self.row.first_open // self.block * self.block
        self.pieces = Pieces(model.tokenizer, job.request.stop)
        self.tokens: list[int] = []
        self.forward_passes = self.cache_passes = 0
        self.submitted, self.joined, self.first_commit = now, None, None
        self.rewind()

    submitted: float
    joined: float | None
    first_commit: float | None

    def rewind(self) -> None:
        """Forget the keys and values, and the block in work."""
        self.written = 0
        self.ready = False
        self.passes_of_block = 0
        self.logprobs: dict[int, TokenLogprob] = {}

    @property
    def steps(self) -> int:
        """Of the random sampler, for each block."""
        return self.settings.steps or (self.row.new_tokens if self.is_window else self.block)

    @property
    def to_write(self) -> int:
        """Tokens before the block whose keys and values are missing."""
        if self.is_window:
            return 0
        # An autoregressive model reads the last token in order to predict the next.
        return self.first - int(self.config.family == "ar") - self.written

    def commit(self, block: list[int], now: float) -> tuple[Committed, Reason | None]:
        """Take the tokens of the finished block; what the client gets, and why the text ends, if it does."""
        positions = range(self.first, min(self.first + self.block, self.row.length))
        new = [p for p in positions if self.open[p]]
        self.ids[self.first : self.first + self.block] = block
        before = self.first
        if not self.request.gaps and self.config.eot_id in (known := [self.ids[p] for p in new]):
            new, reason = new[: known.index(self.config.eot_id) + 1], "stop"
        else:
            reason = self._advance()
        text, new, reason = self._text_of(new, reason)
        if reason is None and self.config.family != "ar":  # nobody reads the last block
            self.cache_passes += (self.first - before) // self.block
        logprobs = None
        if self.request.logprobs is not None:
            logprobs = [self.logprobs[p] for p in new]
        tokens = [self.ids[p] for p in new]
        self.tokens += tokens
        self.forward_passes += self.passes_of_block
        self.passes_of_block, self.logprobs, self.ready = 0, {}, False
        self.first_commit = now if self.first_commit is None else self.first_commit
        return Committed(tokens, text, logprobs, self.forward_passes), reason

    def _advance(self) -> Reason | None:
        """Go to the next block with something open."""
        self.first += self.block
        while self.first < self.row.end and not any(self.open[self.first : self.first + self.block]):
            self.first += self.block
        if self.first >= self.row.end:
            return "stop" if self.request.gaps else "length"
        return None

    def _text_of(self, new: list[int], reason: Reason | None) -> tuple[str, list[int], Reason | None]:
        """The text of new positions; where a stop text ends them, they end too."""
        if self.request.gaps:
            return self._text_of_gaps(new), new, reason
        text, used = self.pieces.add([self.ids[p] for p in new])
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
            text += self.pieces.add([self.ids[position]])[0]
            if position in ends:
                text += self.pieces.end()[0]
        return text

    def finished(self, reason: Reason, now: float, message: str | None = None) -> Finished:
        started = now if self.joined is None else self.joined
        return Finished(
            reason=reason,
            message=message,
            prompt_tokens=len(self.row.prompt) - (self.row.new_tokens if self.row.gaps else 0),
            completion_tokens=len(self.tokens),
            forward_passes=self.forward_passes + self.passes_of_block,
            cache_passes=self.cache_passes,
            seconds_queued=started - self.submitted,
            seconds_running=now - started,
            seconds_to_first=None if self.first_commit is None else self.first_commit - self.submitted,
        )

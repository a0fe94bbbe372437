"""What a scheduler takes and gives back: requests, their events, and the handle of a submitted request."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Literal

from dadlm.decode import StepEvent, request
from dadlm.decode.events import CycleEvent
from dadlm.errors import ConfigError, DadlmError

Reason = Literal["stop", "length", "cancelled", "deadline", "shutdown", "error"]
FAILED = "the request could not be decoded; the server's log says why"


class QueueFull(DadlmError):  # noqa: N818 - says what happened, as queue.Full does
    """The queue is full; a place is expected in `retry_after` seconds."""

    def __init__(self, waiting: int, retry_after: float) -> None:
        super().__init__(f"{waiting} requests are waiting already; try again in {retry_after:.0f} seconds")
        self.retry_after = retry_after


class ShuttingDown(DadlmError):  # noqa: N818
    """The scheduler only finishes what it has."""


@dataclass(frozen=True, kw_only=True)
class Request(request.Request):
    """A text to complete, or one whose gaps are to be filled, and what its client gets to see of it."""

    stop: tuple[str, ...] = ()
    """At most 4; the text ends before the first that occurs, also where blocks meet."""
    trace: bool = False
    """Emit an event for every denoising step."""
    logprobs: int | None = None
    """Give the log-probability of each token, and this many (0 to 5) of its node's best tokens."""
    deadline: float | None = None
    """Seconds after submission at which the request ends, finished or not."""
    batch: str | None = None
    """Requests with the same batch share one turn when rows are given out; None: a turn of its own."""

    def __post_init__(self) -> None:
        if len(self.stop) > 4 or not all(isinstance(text, str) and text for text in self.stop):
            raise ConfigError(f"stop takes at most 4 texts that are not empty, got {self.stop!r}")
        if self.stop and self.gaps:
            raise ConfigError("stop belongs to completions: gaps are filled to their end")
        if self.logprobs is not None and not 0 <= self.logprobs <= 5:
            raise ConfigError(f"logprobs must be in 0..5, got {self.logprobs!r}")
        if self.deadline is not None and not self.deadline > 0:
            raise ConfigError(f"deadline must be a positive number of seconds, got {self.deadline!r}")


@dataclass(frozen=True)
class TokenLogprob:
    """A committed token with its probability by its node, untempered, at the step that fixed it."""

    token: int
    logprob: float
    top: list[tuple[int, float]]
    """(id, log-probability) of the node's best tokens, best first."""


@dataclass(frozen=True)
class Committed:
    """A finished block; an autoregressive model commits one token at a time."""

    tokens: list[int]
    """Up to and including end-of-text or the token that completes a stop text; with gaps, only what fills
    them."""
    text: str
    """Joined, the whole text; what may still become another character or a stop text is held back."""
    logprobs: list[TokenLogprob] | None
    """One per token, if asked for."""
    forward_passes: int
    """Of this text so far."""


@dataclass(frozen=True)
class Finished:
    """The last event of every job."""

    reason: Reason
    message: str | None
    prompt_tokens: int
    completion_tokens: int
    forward_passes: int
    cache_passes: int
    cycles: int
    """Mode lossless: drafts that were verified."""
    seconds_queued: float
    seconds_running: float
    seconds_to_first: float | None
    """From submission to the first committed block; None if there was none."""


Event = Committed | StepEvent | CycleEvent | Finished


class Job:
    """The handle of a submitted request. Its events can be read once: `for event in job`, or `take`."""

    def __init__(self, request: Request) -> None:
        self.request, self.cancelled = request, False
        self.failed = False
        """Whether making an event failed."""
        self.listener: Callable[[], None] = lambda: None
        """Called after each event, in the thread that made it."""
        self._events: SimpleQueue[Event] = SimpleQueue()

    @property
    def unread(self) -> int:
        return self._events.qsize()

    def cancel(self) -> None:
        """End the request soon; its last event says so unless it finished first."""
        self.cancelled = True  # checked before every step

    def put(self, event: Event) -> None:
        """For the scheduler: hand an event to the reader."""
        self._events.put(event)
        self.listener()

    def take(self, timeout: float = 0) -> Event | None:
        """The next event; None if it does not arrive within `timeout` seconds."""
        try:
            return self._events.get(timeout > 0, timeout)
        except Empty:
            return None

    def __iter__(self) -> Iterator[Event]:
        while not isinstance(event := self._events.get(), Finished):
            yield event
        yield event

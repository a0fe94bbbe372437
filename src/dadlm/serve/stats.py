"""What a scheduler counts. Plain numbers: prometheus_client, which `metrics` uses, is an optional package."""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field

from dadlm.serve.request import Finished, Reason

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKENS_PER_FORWARD = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
_WINDOW = 10.0  # seconds over which a rate is taken


@dataclass
class Histogram:
    """Counts of values up to each bound, not cumulative; the last counts those above all bounds."""

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


@dataclass
class Stats:
    """Counts since the start; `queue`, `rows` and `tokens_per_second` are current values."""

    queue: int = 0
    """Requests waiting."""
    rows: int = 0
    """Requests being decoded."""
    max_rows: int = 0
    max_queue: int = 0
    tokens_per_second: float = 0.0
    """Committed tokens over the last ten seconds."""
    submitted: int = 0
    refused: int = 0
    """Because the queue was full."""
    finished: dict[Reason, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    tokens: int = 0
    """Committed tokens."""
    forward_passes: int = 0
    """Denoising passes of the model, of any number of rows."""
    row_passes: int = 0
    """The same, counted once per row: tokens / row_passes is the mean TPF."""
    cache_passes: int = 0
    """Blocks whose keys and values were written, counted once per row."""
    out_of_memory: int = 0
    queue_seconds: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    first_seconds: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    """From submission to the first committed block."""
    total_seconds: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    batch_rows: Histogram = field(default_factory=lambda: Histogram(_ROWS))
    """Rows of each forward pass."""
    tokens_per_forward: Histogram = field(default_factory=lambda: Histogram(_TOKENS_PER_FORWARD))
    """Of each finished request."""

    def end(self, finished: Finished) -> None:
        """Count a finished request."""
        self.finished[finished.reason] = self.finished.get(finished.reason, 0) + 1
        self.prompt_tokens += finished.prompt_tokens
        self.cache_passes += finished.cache_passes
        self.queue_seconds.add(finished.seconds_queued)
        self.total_seconds.add(finished.seconds_queued + finished.seconds_running)
        if finished.seconds_to_first is not None:
            self.first_seconds.add(finished.seconds_to_first)
        if finished.forward_passes:
            self.tokens_per_forward.add(finished.completion_tokens / finished.forward_passes)


class Rate:
    """An amount per second over the last ten seconds."""

    def __init__(self) -> None:
        self._events: deque[tuple[float, float]] = deque()

    def add(self, now: float, amount: float) -> None:
        self._events.append((now, amount))
        self._forget(now)

    def per_second(self, now: float) -> float:
        self._forget(now)
        if not self._events:
            return 0.0
        return sum(amount for _, amount in self._events) / max(now - self._events[0][0], 1.0)

    def _forget(self, now: float) -> None:
        while self._events and self._events[0][0] < now - _WINDOW:
            self._events.popleft()

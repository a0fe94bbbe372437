"""What a scheduler counts, without prometheus_client, which is optional: `service` makes metrics of it."""

# ruff: noqa: RUF009 - the calls make fields

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from dadlm.serve.request import Finished, Reason

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKENS_PER_FORWARD = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
_WINDOW = 10  # seconds over which a rate is taken
_LONGEST_RETRY = 120.0  # seconds
_REMEMBERED = 32  # texts whose mean duration is expected of the next


@dataclass
class Histogram:
    """Counts of values up to each bound, not cumulative; the last is of values above all bounds."""

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


def _metric(kind: Literal["gauge", "counter", "histogram"], text: str, make: Any = int) -> Any:
    return field(default_factory=make, metadata={"kind": kind, "help": text})


def _histogram(bounds: tuple[float, ...], text: str) -> Any:
    return _metric("histogram", text, partial(Histogram, bounds))


@dataclass
class Stats:
    """Gauges are current values, all others count from the start. The names are those of the metrics."""

    queue: int = _metric("gauge", "Requests waiting.")
    queue_limit: int = _metric("gauge", "Requests that may wait.")
    rows: int = _metric("gauge", "Requests being decoded.")
    rows_limit: int = _metric("gauge", "Requests that may be decoded at once.")
    tokens_per_second: float = _metric("gauge", "Committed tokens, last ten seconds.")
    submitted: int = _metric("counter", "Requests accepted.")
    refused: int = _metric("counter", "Requests refused because the queue was full.")
    finished: dict[Reason, int] = _metric("counter", "Requests ended.", dict)
    prompt_tokens: int = _metric("counter", "Prompt tokens of finished requests.")
    tokens: int = _metric("counter", "Committed tokens.")
    forward_passes: int = _metric("counter", "Denoising passes of the model.")
    row_passes: int = _metric("counter", "Denoising passes, counted once per row.")
    cache_passes: int = _metric("counter", "Finished blocks written to the cache.")
    out_of_memory: int = _metric("counter", "Times the number of rows was halved.")
    queue_seconds: Histogram = _histogram(_SECONDS, "Time a request waited.")
    first_block_seconds: Histogram = _histogram(_SECONDS, "Time to the first committed block.")
    total_seconds: Histogram = _histogram(_SECONDS, "Time from submission to the end.")
    batch_rows: Histogram = _histogram(_ROWS, "Rows of each forward pass.")
    tokens_per_forward: Histogram = _histogram(_TOKENS_PER_FORWARD, "Of each finished request.")

    def __post_init__(self) -> None:
        self._recent: deque[list[int]] = deque(maxlen=_WINDOW + 1)  # [second, tokens]
        self._durations: deque[float] = deque(maxlen=_REMEMBERED)  # seconds that texts held a row

    def step(self, rows: int) -> None:
        """Count a forward pass."""
        self.forward_passes += 1
        self.row_passes += rows
        self.batch_rows.add(rows)

    def commit(self, tokens: int, now: float) -> None:
        self.tokens += tokens
        if not self._recent or self._recent[-1][0] != int(now):
            self._recent.append([int(now), 0])
        self._recent[-1][1] += tokens

    def update_rate(self, now: float) -> None:
        recent = {second: tokens for second, tokens in self._recent if second > now - _WINDOW}
        self.tokens_per_second = sum(recent.values()) / max(now - min(recent, default=0), 1.0)

    def end(self, finished: Finished) -> None:
        """Count a finished request."""
        self.finished[finished.reason] = self.finished.get(finished.reason, 0) + 1
        self.prompt_tokens += finished.prompt_tokens
        self.cache_passes += finished.cache_passes
        self.queue_seconds.add(finished.seconds_queued)
        self.total_seconds.add(finished.seconds_queued + finished.seconds_running)
        if finished.seconds_to_first is not None:
            self.first_block_seconds.add(finished.seconds_to_first)
        if finished.forward_passes:
            self.tokens_per_forward.add(finished.completion_tokens / finished.forward_passes)
            self._durations.append(finished.seconds_running)

    def retry_after(self, rows: int) -> float:
        """Seconds until a place in the queue is expected: all rows are busy, and finish evenly spread."""
        mean = sum(self._durations) / max(1, len(self._durations))
        return min(_LONGEST_RETRY, max(1.0, mean / rows))

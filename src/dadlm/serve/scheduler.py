"""Continuous batching: requests join and leave between denoising steps of one model.

One thread owns the model and does `tick` after `tick`: see who gave up, let waiting requests in, read new
text, one forward pass for all rows, hand out what is finished. First come, first in; a request gives its row
back as soon as it is done, so a long one never blocks the short ones behind it. Knows nothing of HTTP.
"""

import copy
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch

from dadlm.decode.cache import slots_that_fit
from dadlm.decode.engine import Committed as CommittedTokens
from dadlm.decode.engine import Engine, StepResult
from dadlm.decode.request import Row
from dadlm.decode.step import Step
from dadlm.errors import ConfigError
from dadlm.model import Model
from dadlm.model.capture import empty_cache
from dadlm.serve import detail
from dadlm.serve.request import Committed, Job, QueueFull, Reason, Request, ShuttingDown, Traced
from dadlm.serve.stats import Rate, Stats
from dadlm.serve.task import Task

Result = TypeVar("Result")
_log = logging.getLogger("dadlm.serve")
_FAILED = "the request could not be decoded; the server's log says why"
_NO_MEMORY = "out of memory, even alone; ask for fewer tokens"
_LONGEST_RETRY = 120.0  # seconds
_REMEMBERED = 32  # texts that tell how long one takes
_UNREAD_STEPS = 256  # traced steps, some 50 kB each, that may wait for a client who does not read
_OF_ALL = (torch.OutOfMemoryError, torch.AcceleratorError)  # no single request is to blame


class Scheduler:
    """Decodes the requests of many clients side by side, each as if it were alone."""

    def __init__(
        self,
        model: Model,
        *,
        max_rows: int = 64,
        max_queue: int = 256,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, value in (("max_rows", max_rows), ("max_queue", max_queue)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        self.model, self.clock = model, clock
        self.max_rows, self.max_queue = slots_that_fit(model, max_rows), max_queue
        self._on_gpu = model.device.type == "cuda"
        self._engine, self._tasks = Engine(model, lockstep=False), dict[Row, Task]()
        self._reserve()
        self._waiting: deque[Task] = deque()
        self._changed = threading.Condition()  # guards what is waiting, the counts, and the end
        self._stats, self._tokens = Stats(), Rate()
        self._lasted: deque[float] = deque(maxlen=_REMEMBERED)  # seconds that texts had a row for
        self._thread: threading.Thread | None = None
        self._stop_at: float | None = None

    # --- for everyone

    def start(self) -> "Scheduler":
        self._thread = threading.Thread(target=self._run, name="dadlm-scheduler", daemon=True)
        self._thread.start()
        return self

    @property
    def alive(self) -> bool:
        """Whether requests are being decoded and taken."""
        return self._thread is not None and self._thread.is_alive() and self._stop_at is None

    def submit(self, request: Request) -> Job:
        """Queue a request. What this model cannot do is refused with a ConfigError."""
        task = Task(self.model, Job(request), self.clock())
        with self._changed:
            if self._stop_at is not None:
                raise ShuttingDown("the server is shutting down and takes no new requests")
            if len(self._waiting) >= self.max_queue:
                self._stats.refused += 1
                raise QueueFull(len(self._waiting), self._retry_after())
            self._stats.submitted += 1
            self._waiting.append(task)
            self._changed.notify_all()
        return task.job

    def shutdown(self, grace: float) -> None:
        """Take nothing new, finish what runs and waits within `grace` seconds, and tell the rest."""
        with self._changed:
            self._stop_at = self.clock() + grace
            self._changed.notify_all()
        if self._thread is None:
            self._run()
        else:
            self._thread.join()

    def stats(self) -> Stats:
        """Counts as they are now."""
        with self._changed:
            now = self.clock()
            stats = copy.deepcopy(self._stats)
            stats.queue, stats.rows = len(self._waiting), len(self._tasks)
            stats.max_rows, stats.max_queue = self.max_rows, self.max_queue
            stats.tokens_per_second = self._tokens.per_second(now)
        return stats

    def _retry_after(self) -> float:
        """Seconds until a place in the queue is expected: all rows are busy, and end one after another."""
        mean = sum(self._lasted) / max(1, len(self._lasted))
        return min(_LONGEST_RETRY, max(1.0, mean / self.max_rows))

    # --- the thread

    def _run(self) -> None:
        reason, message = "shutdown", "the server shut down before the text was finished"
        try:
            while not self._is_over():
                self.tick()
        except BaseException:  # a broken device; `alive` tells, and nobody waits for ever
            _log.exception("the scheduler stopped")
            reason, message = "error", _FAILED
        with self._changed:
            self._stop_at = self.clock()
        for task in self._everyone():
            self._tell(task, reason, message)
        with self._changed:
            self._engine.release()
            self._tasks.clear()
            self._waiting.clear()

    def _is_over(self) -> bool:
        """Wait until there is something to do; True when there never will be again."""
        with self._changed:
            while not (self._waiting or self._tasks):
                if self._stop_at is not None:
                    return True
                self._changed.wait()
            return self._stop_at is not None and self.clock() >= self._stop_at

    def tick(self) -> None:
        """One step of the engine, and what its clients get of it."""
        full = False
        try:
            self._sweep()
            self._join()
            for result in self._step():
                self._look(result)
                for new in result.committed:
                    if task := self._tasks.get(new.row):  # what was asked about the step may have failed
                        self._alone(task, partial(self._commit, task, new))
        except torch.OutOfMemoryError:
            full = True
        except torch.AcceleratorError:
            raise  # the device answers nothing after it: better no scheduler than one that fails everyone
        except Exception:
            _log.exception("a step failed")
            for task in list(self._tasks.values()):
                self._end(task, "error", _FAILED)
        if full:  # only now: the error's frames hold on to the memory
            self._shrink()

    def _everyone(self) -> list[Task]:
        with self._changed:
            return [*self._tasks.values(), *self._waiting]

    def _sweep(self) -> None:
        """Let those go who were cancelled or are too late."""
        now = self.clock()
        for task in self._everyone():
            deadline = task.request.deadline
            if task.job.cancelled:
                self._end(task, "cancelled")
            elif task.request.trace and task.job.unread > _UNREAD_STEPS:
                self._end(task, "cancelled", "nobody reads its steps")
            elif deadline is not None and now >= task.submitted + deadline:
                self._end(task, "deadline", f"not finished within {deadline:g} seconds")

    def _join(self) -> None:
        """First come, first in, as long as there are rows and what is to be read fits the next step."""
        engine = self._engine
        while len(engine.rows) < self.max_rows and engine.tokens_to_read < engine.read_at_once:
            with self._changed:
                if not self._waiting:
                    return
                task = self._waiting.popleft()
                task.joined = self.clock() if task.joined is None else task.joined
                self._tasks[engine.add(task.row)] = task

    def _step(self) -> list[StepResult]:
        """A step of all rows at once; should that fail, of each alone, so that only the culprit pays."""
        tasks = list(self._tasks.values())
        try:
            return [self._engine.step()] if tasks else []
        except _OF_ALL:
            raise
        except Exception:
            _log.exception("a step failed; each request is tried alone")
        return [
            result
            for task in tasks
            for result in self._alone(task, partial(self._engine.step, only=task.row))
        ]

    def _alone(self, task: Task, act: Callable[[], Result]) -> list[Result]:
        """What was done for one task; nothing if it failed, which ends the task."""
        try:
            return [act()]
        except _OF_ALL:
            raise
        except Exception:
            _log.exception("a request failed")
            self._end(task, "error", _FAILED)
            return []

    def _look(self, result: StepResult) -> None:
        """Hand out what was asked about a step, and count it."""
        if result.step is None:
            return
        with self._changed:
            self._stats.forward_passes += 1
            self._stats.row_passes += len(result.rows)
            self._stats.batch_rows.add(len(result.rows))
        for index, row in result.rows.items():
            task = self._tasks[row]
            if task.request.trace or task.request.logprobs is not None:
                self._alone(task, partial(self._details, task, result.step, index))

    def _details(self, task: Task, step: Step, index: int) -> None:
        one = detail.row_of_step(step, index, task.row.block)
        if task.request.trace:
            task.job.put(Traced(detail.trace(self.model, one)))
        if task.request.logprobs is not None:
            found = detail.logprobs(self.model, one, task.request.logprobs)
            first = int(one.block.first[0])
            task.logprobs |= {first + place: logprob for place, logprob in found.items()}

    def _commit(self, task: Task, new: CommittedTokens) -> None:
        """Hand out a finished block; let the request go if it is finished with it."""
        now = self.clock()
        committed, reason = task.commit(new, now)
        with self._changed:
            self._stats.tokens += len(committed.tokens)
            self._tokens.add(now, len(committed.tokens))
        task.job.put(committed)
        if reason is not None:
            self._end(task, reason)

    def _end(self, task: Task, reason: Reason, message: str | None = None) -> None:
        """Free the task's place and tell its client."""
        with self._changed:
            if task.row in self._engine.rows:
                self._engine.remove(task.row)
            if self._tasks.pop(task.row, None) is None:
                self._waiting.remove(task)
        self._tell(task, reason, message)

    def _tell(self, task: Task, reason: Reason, message: str | None) -> None:
        now = self.clock()
        finished = task.finished(reason, now, message)
        with self._changed:
            self._stats.end(finished)
            if task.joined is not None:
                self._lasted.append(finished.seconds_running)
        if reason != "error" and (rest := task.pieces.end()[0]):  # held back for what can no longer come
            task.job.put(Committed([], rest, None, finished.forward_passes))
        task.job.put(finished)

    def _shrink(self) -> None:
        """Out of memory: half as many rows. Their requests wait again and go on where they were."""
        tasks = sorted(self._tasks.values(), key=lambda task: task.submitted)
        if self.max_rows == 1:
            for task in tasks:
                self._end(task, "error", _NO_MEMORY)
            return
        _log.warning("out of memory with %d rows: at most %d from now on", len(tasks), self.max_rows // 2)
        with self._changed:
            self.max_rows //= 2
            self._stats.out_of_memory += 1
            for task in reversed(tasks):
                task.row.rewind()
                self._waiting.appendleft(task)
            self._tasks.clear()
            self._engine.release()
            self._reserve()

    def _reserve(self) -> None:
        """On a GPU, take the memory of `max_rows` rows now, or of fewer where that does not fit any more."""
        while self._on_gpu:
            empty_cache()
            try:
                return self._engine.reserve(self.max_rows)
            except torch.OutOfMemoryError:
                if self.max_rows == 1:
                    raise
                self.max_rows //= 2

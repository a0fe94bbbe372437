"""Continuous batching: requests join and leave between denoising steps of one model.

One thread owns the model and calls `tick` in a loop: end requests that are cancelled or late, admit waiting
ones in turn (`waiting`), run one step of the engine, hand out what is new. Knows nothing of HTTP.
"""

import copy
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from dadlm.decode.cache import slots_that_fit
from dadlm.decode.engine import Engine, StepResult
from dadlm.decode.engines import reserve_rows
from dadlm.decode.request import Row
from dadlm.errors import ConfigError
from dadlm.model import Model
from dadlm.serve.request import FAILED, Committed, Job, QueueFull, Reason, Request, ShuttingDown
from dadlm.serve.stats import Stats
from dadlm.serve.task import Task
from dadlm.serve.tracer import Tracer
from dadlm.serve.waiting import Waiting

_log = logging.getLogger("dadlm.serve")
_OF_ALL = (torch.OutOfMemoryError, torch.AcceleratorError)  # no single request is to blame


class Scheduler:
    """Decodes the requests of many clients side by side, each as if it were alone."""

    def __init__(
        self,
        model: Model,
        *,
        engine: Engine | None = None,
        max_rows: int = 64,
        max_queue: int = 256,
        clock=time.monotonic,
    ) -> None:
        if min(max_rows, max_queue) < 1:
            raise ConfigError(f"max_rows and max_queue must be at least 1, got {max_rows} and {max_queue}")
        self.model, self.clock, self.max_queue = model, clock, max_queue
        self._engine, self._tasks = engine or Engine(model, lockstep=False), dict[Row, Task]()
        if model.config.edge != "none" and self._engine.graphs.enabled:
            self._engine.prepare_shortlists()  # later it would stall running rows and drop captured graphs
        self.max_rows = reserve_rows(self._engine, slots_that_fit(model, max_rows))
        self._waiting, self._stats, self._tracer = Waiting(), Stats(), Tracer()
        self._changed = threading.Condition()  # guards `_waiting`, `_tasks`, `_stats` and `_stop_at`
        self._thread: threading.Thread | None = None
        self._stop_at: float | None = None

    def start(self) -> "Scheduler":
        self._thread = threading.Thread(target=self._run, name="dadlm-scheduler", daemon=True)
        self._thread.start()
        return self

    @property
    def alive(self) -> bool:
        """Whether requests are being decoded and accepted."""
        return self._thread is not None and self._thread.is_alive() and self._stop_at is None

    def submit(self, request: Request) -> Job:
        """Queue a request; a ConfigError refuses what this model cannot do."""
        task = Task(self.model, Job(request), self.clock())
        with self._changed:
            if self._stop_at is not None:
                raise ShuttingDown("the server is shutting down and takes no new requests")
            if len(self._waiting) >= self.max_queue:
                self._stats.refused += 1
                raise QueueFull(len(self._waiting), self._stats.retry_after(self.max_rows))
            self._stats.submitted += 1
            self._waiting.append(task)
            self._changed.notify_all()
        return task.job

    def shutdown(self, grace: float) -> None:
        """Accept no more requests, give the others `grace` seconds to finish, and end those that are left."""
        with self._changed:
            self._stop_at = self.clock() + grace
            self._changed.notify_all()
        self._run() if self._thread is None else self._thread.join()

    def stats(self) -> Stats:
        """A snapshot of the counts."""
        with self._changed:
            stats = copy.deepcopy(self._stats)
            stats.queue, stats.queue_limit = len(self._waiting), self.max_queue
            stats.rows, stats.rows_limit = len(self._tasks), self.max_rows
            stats.update_rate(self.clock())
        return stats

    def _run(self) -> None:
        reason, message = "shutdown", "the server shut down before the text was finished"
        try:
            while not self._is_over():
                self.tick()
        except BaseException:  # a broken device, say: no client may wait forever, and `alive` is False
            _log.exception("the scheduler stopped")
            reason, message = "error", FAILED
        with self._changed:
            self._stop_at, left = self.clock(), [*self._tasks.values(), *self._waiting]
            self._tasks.clear()
            self._waiting.clear()
        for task in left:
            self._finish(task, reason, message)
        self._tracer.close()
        self._engine.release()

    def _is_over(self) -> bool:
        """Wait until there is work; True if there will never be any again."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._tasks or self._stop_at is not None)
            has_work = self._waiting or self._tasks
            return self._stop_at is not None and (not has_work or self.clock() >= self._stop_at)

    def tick(self) -> None:
        """One step of the engine, and everything around it."""
        full = False
        try:
            self._sweep()
            self._admit()
            for result in self._step():
                self._hand_out(result)
        except torch.OutOfMemoryError:
            full = True
        except torch.AcceleratorError:
            raise  # the device is lost: better no scheduler than one that fails every request
        except Exception:
            _log.exception("a step failed")
            for task in list(self._tasks.values()):
                self._end(task, "error", FAILED)
        if full:  # only now: the error's frames held on to the memory
            self._shrink()

    def _sweep(self) -> None:
        """End requests that are cancelled, failed or late."""
        with self._changed:
            tasks = [*self._tasks.values(), *self._waiting]
        for task in tasks:
            if end := task.must_end(self.clock()):
                self._end(task, *end)

    def _admit(self) -> None:
        """Give waiting requests rows, in turn, while there are rows and the prompts fit the next step."""
        while self._engine.tokens_to_read < self._engine.read_at_once:
            with self._changed:
                has_room = len(self._engine.rows) < self.max_rows or self._interrupt()
                if not has_room or (task := self._waiting.next(self._tasks.values())) is None:
                    return
                self._waiting.remove(task)
                self._tasks[task.row] = task
                task.joined = self.clock() if task.joined is None else task.joined
            with self._isolated(task):
                self._engine.add(task.row)

    def _interrupt(self) -> bool:
        """Take a row from a request that has more than its share, if one has; its text resumes later."""
        if task := self._waiting.to_interrupt(self._tasks.values()):
            self._engine.remove(task.row)
            self._waiting.insert(0, self._tasks.pop(task.row))
        return task is not None

    def _step(self) -> Iterator[StepResult]:
        """One step of all rows; if that fails, of each row alone, so that only the one at fault fails."""
        tasks = list(self._tasks.values())
        try:
            if tasks:
                yield self._engine.step()
            return
        except _OF_ALL:
            raise
        except Exception:
            _log.exception("a step failed; each request is tried alone")
        for task in tasks:
            with self._isolated(task):
                yield self._engine.step(only=task.row)

    @contextmanager
    def _isolated(self, task: Task, of_all: tuple[type[Exception], ...] = _OF_ALL) -> Iterator[None]:
        """An error inside ends this task and no other, unless it is one `of_all`."""
        try:
            yield
        except of_all:
            raise
        except Exception:
            _log.exception("a request failed")
            self._end(task, "error", FAILED)

    def _hand_out(self, result: StepResult) -> None:
        """Give clients what was committed, and the traces and log-probabilities that they asked for."""
        if result.rows:
            with self._changed:
                self._stats.step(len(result.rows))
        for row, make_event in result.drafts.items():
            if self._tasks[row].request.trace:
                self._tracer.put(self._tasks[row].job, make_event)
        if result.step is not None:
            for index, row in result.rows.items():
                # Out of memory here, too, ends one task: after another step, what this one committed is lost.
                with self._isolated(task := self._tasks[row], (torch.AcceleratorError,)):
                    if make_event := task.observe(self.model, result.step, index):
                        self._tracer.put(task.job, make_event)
        for new in result.committed:
            if task := self._tasks.get(new.row):  # observing it may have failed
                with self._isolated(task):
                    committed, reason = task.commit(new.positions, self.clock())
                    with self._changed:
                        self._stats.commit(len(committed.tokens), self.clock())
                    self._tracer.put(task.job, committed)
                    if reason is not None:
                        self._end(task, reason)

    def _end(self, task: Task, reason: Reason, message: str | None = None) -> None:
        """Free the task's row or place in the queue, and finish it."""
        with self._changed:
            if task.row in self._engine.rows:
                self._engine.remove(task.row)
            if self._tasks.pop(task.row, None) is None:
                self._waiting.remove(task)
        self._finish(task, reason, message)

    def _finish(self, task: Task, reason: Reason, message: str | None) -> None:
        with self._changed:
            self._stats.end(finished := task.finished(reason, self.clock(), message))
        if reason != "error" and (rest := task.text.end()[0]):  # held back for what can no longer come
            self._tracer.put(task.job, Committed([], rest, None, finished.forward_passes))
        self._tracer.put(task.job, finished)

    def _shrink(self) -> None:
        """Out of memory: halve the rows. All requests wait again and resume where they were."""
        tasks = sorted(self._tasks.values(), key=lambda task: task.submitted)
        if self.max_rows == 1:
            for task in tasks:
                self._end(task, "error", "out of memory, even alone; ask for fewer tokens")
            return
        _log.warning("out of memory with %d rows: at most %d from now on", len(tasks), self.max_rows // 2)
        with self._changed:
            self.max_rows //= 2
            self._stats.out_of_memory += 1
            for task in tasks:
                task.row.rewind()
            self._waiting[:0] = tasks
            self._tasks.clear()
            self._engine.release()
            with suppress(torch.OutOfMemoryError):  # then a step finds out, and shrinks again
                self.max_rows = reserve_rows(self._engine, self.max_rows)

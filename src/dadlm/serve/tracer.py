"""Hands events to clients; those of traced requests are made in another thread than the scheduler's."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from dadlm.serve.request import FAILED, Event, Finished, Job

_log = logging.getLogger("dadlm.serve")
_MOST = 256  # events of about 100 kB that may wait to be made; then the scheduler waits


class Tracer:
    """Each job gets its events in the order of `put`."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "dadlm-trace")
        self._room = threading.Semaphore(_MOST)

    def put(self, job: Job, event: Event | Callable[[], Event]) -> None:
        """Give a job an event, or a function that makes one: at once, or after the steps of its trace."""
        if not job.request.trace and not callable(event):
            return job.put(event)
        self._room.acquire()
        self._pool.submit(self._deliver, job, event)

    def _deliver(self, job: Job, event: Event | Callable[[], Event]) -> None:
        try:
            if job.failed and not isinstance(event, Finished):
                return
            made = event() if callable(event) else event
            if job.failed and isinstance(made, Finished):
                made = replace(made, reason="error", message=FAILED)
            job.put(made)
        except Exception:
            _log.exception("a trace failed")
            job.failed = True  # the scheduler ends it before its next step
        finally:
            self._room.release()

    def close(self) -> None:
        """Wait until everything is handed out."""
        self._pool.shutdown()

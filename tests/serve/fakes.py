"""A scheduler that does nothing by itself: a test says what happens to each job, and when."""

from typing import Any

from tests.serve.running import letter_model, running, settings

from dadlm import Model
from dadlm.serve.request import Committed, Finished, Job, Request
from dadlm.serve.service import Service
from dadlm.serve.stats import Stats


def finished(reason: Any = "length", message: str | None = None) -> Finished:
    """3 tokens of prompt, 4 new ones, 2 forward passes, 1 of the cache; 0.5 s queued, 0.25 s running."""
    return Finished(reason, message, 3, 4, 2, 1, 0, 0.5, 0.25, 0.6)


def committed(text: str, tokens: list[int] | None = None, passes: int = 1) -> Committed:
    return Committed(tokens=tokens or [0] * len(text), text=text, logprobs=None, forward_passes=passes)


class FakeScheduler:
    """Gives every job these events at once, and refuses all after the first `accepted` with `refusal`."""

    def __init__(self, *events: Any, refusal: Exception | None = None, accepted: int = 0) -> None:
        self.events, self.refusal, self.accepted = events, refusal, accepted
        self.jobs: list[Job] = []
        self.alive = True

    def __call__(self, model: Model, **limits: int) -> "FakeScheduler":
        self.model = model
        return self

    def start(self) -> None: ...

    def shutdown(self, grace: float) -> None:
        for job in self.jobs:
            job.put(finished("shutdown"))

    def submit(self, request: Request) -> Job:
        if self.refusal is not None and len(self.jobs) >= self.accepted:
            raise self.refusal
        job = Job(request)
        self.jobs.append(job)
        for event in self.events:
            job.put(event)
        return job

    def stats(self) -> Stats:
        return Stats()

    @property
    def cancelled(self) -> list[bool]:
        return [job.cancelled for job in self.jobs]


def fake_service(model: Model, scheduler: FakeScheduler, **changes: Any) -> Service:
    return Service({"fake": model}, settings(**changes), scheduler)


def serving(scheduler: FakeScheduler, api_key: str | None = None, **changes: Any):
    """A running server with this scheduler."""
    return running(fake_service(letter_model("dadlm"), scheduler, **changes), api_key)

"""Serving: a scheduler that decodes the requests of many clients side by side, and HTTP around it."""

from dadlm.serve.request import (
    Committed,
    Event,
    Finished,
    Job,
    QueueFull,
    Request,
    ShuttingDown,
    TokenLogprob,
    Traced,
)
from dadlm.serve.scheduler import Scheduler
from dadlm.serve.stats import Histogram, Stats

__all__ = [
    "Committed",
    "Event",
    "Finished",
    "Histogram",
    "Job",
    "QueueFull",
    "Request",
    "Scheduler",
    "ShuttingDown",
    "Stats",
    "TokenLogprob",
    "Traced",
]

"""Serving: a scheduler that batches the requests of many clients, and an HTTP API around it."""

from dadlm.serve.request import Committed, Event, Finished, Job, QueueFull, Request, ShuttingDown
from dadlm.serve.scheduler import Scheduler

__all__ = ["Committed", "Event", "Finished", "Job", "QueueFull", "Request", "Scheduler", "ShuttingDown"]

"""The models of a server, each with its scheduler."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from dadlm.model import Model
from dadlm.serve.refusals import Refusal
from dadlm.serve.scheduler import Scheduler
from dadlm.serve.settings import ServeSettings


@dataclass(frozen=True)
class Served:
    name: str
    model: Model
    scheduler: Scheduler

    def card(self, created: int) -> dict[str, Any]:
        """An entry of /v1/models."""
        config = self.model.config
        about = {
            "family": config.family,
            "block_size": config.block,
            "candidates": config.nodes_per_mask,
            "context": config.context,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
        }
        return {"id": self.name, "object": "model", "created": created, "owned_by": "dadlm", "dadlm": about}


class Service:
    def __init__(self, models: Mapping[str, Model], settings: ServeSettings, schedule=Scheduler) -> None:
        self.settings, self.created, self.running = settings, int(time.time()), False
        limits = {"max_rows": settings.max_rows, "max_queue": settings.max_queue}
        self.served = {name: Served(name, model, schedule(model, **limits)) for name, model in models.items()}

    def start(self) -> None:
        for served in self.served.values():
            served.scheduler.start()
        self.running = True

    def close(self, grace: float) -> None:
        """Accept no more requests, give the running ones `grace` seconds, and end the rest."""
        if self.running:
            self.running = False
            with ThreadPoolExecutor(len(self.served)) as pool:  # all schedulers share the grace period
                for served in self.served.values():
                    pool.submit(served.scheduler.shutdown, grace)

    @property
    def broken(self) -> bool:
        """Whether a scheduler has stopped by itself; only a restart helps."""
        return self.running and not all(served.scheduler.alive for served in self.served.values())

    @property
    def ready(self) -> bool:
        return self.running and not self.broken

    def find(self, name: str | None) -> Served:
        if name is None:
            return next(iter(self.served.values()))
        if name not in self.served:
            message = f"model: no {name[:100]!r} here, only {', '.join(self.served)}"
            raise Refusal(404, message, param="model", code="model_not_found")
        return self.served[name]

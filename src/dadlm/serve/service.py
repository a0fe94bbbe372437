"""The models that a server serves, each with its scheduler, from start to end."""

import time
from collections.abc import Iterable, Mapping
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
        facts = {
            "family": config.family,
            "block_size": config.block,
            "candidates": config.nodes_per_mask,
            "context": config.context,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
        }
        return {"id": self.name, "object": "model", "created": created, "owned_by": "dadlm", "dadlm": facts}


class Service:
    """Starts the schedulers, finds them by name, and lets them finish."""

    def __init__(self, served: Iterable[Served], settings: ServeSettings) -> None:
        self.settings, self.created, self.running = settings, int(time.time()), False
        self.served = {one.name: one for one in served}

    @classmethod
    def of(cls, models: Mapping[str, Model], settings: ServeSettings) -> "Service":
        """Models, each with a scheduler of its own."""
        rows, queue = settings.max_rows, settings.max_queue
        schedulers = {name: Scheduler(m, max_rows=rows, max_queue=queue) for name, m in models.items()}
        return cls((Served(name, models[name], schedulers[name]) for name in models), settings)

    def start(self) -> None:
        for served in self.served.values():
            served.scheduler.start()
        self.running = True

    def close(self, grace: float) -> None:
        """Take nothing new; give what runs `grace` seconds to finish, and tell the rest."""
        if self.running:
            self.running = False
            with ThreadPoolExecutor(len(self.served)) as pool:  # the grace is for all of them at once
                for served in self.served.values():
                    pool.submit(served.scheduler.shutdown, grace)

    @property
    def broken(self) -> bool:
        """Whether a scheduler has given up, which only a new process mends."""
        return self.running and not all(served.scheduler.alive for served in self.served.values())

    @property
    def ready(self) -> bool:
        return self.running and not self.broken

    def find(self, name: str | None) -> Served:
        if name is None:
            return next(iter(self.served.values()))
        if name not in self.served:
            known = ", ".join(self.served)
            raise Refusal(
                404, f"model: no {name!r} here, only {known}", param="model", code="model_not_found"
            )
        return self.served[name]

    def cards(self) -> dict[str, Any]:
        data = [served.card(self.created) for served in self.served.values()]
        return {"object": "list", "data": data}

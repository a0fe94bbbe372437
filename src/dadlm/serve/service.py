"""The models of a server, each with its scheduler, and their metrics."""

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from dadlm.model import Mode, Model, in_mode
from dadlm.serve.refusals import Refusal
from dadlm.serve.scheduler import Scheduler
from dadlm.serve.settings import ServeSettings
from dadlm.serve.stats import Histogram, Stats

_KINDS = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily, "histogram": HistogramMetricFamily}


class Service(Collector):
    def __init__(self, models: Mapping[str, Model], settings: ServeSettings, schedule=Scheduler) -> None:
        self.settings, self.created, self.running = settings, int(time.time()), False
        limits = {"max_rows": settings.max_rows, "max_queue": settings.max_queue}
        self.schedulers = {name: schedule(model, **limits) for name, model in models.items()}
        self.ar = {  # models that can do both decode both, side by side
            name: schedule(in_mode(model, "ar"), **limits)
            for name, model in models.items()
            if len(model.config.modes) > 1
        }
        self.registry = CollectorRegistry()  # of its own: a process may run several servers
        self.registry.register(self)

    @property
    def all_schedulers(self) -> dict[str, Scheduler]:
        """By what they are called in the metrics."""
        return self.schedulers | {f"{name} (ar)": scheduler for name, scheduler in self.ar.items()}

    def start(self) -> None:
        for scheduler in self.all_schedulers.values():
            scheduler.start()
        self.running = True

    def close(self, grace: float) -> None:
        """Accept no more requests, give the running ones `grace` seconds, and end the rest."""
        if self.running:
            self.running = False
            schedulers = self.all_schedulers.values()
            with ThreadPoolExecutor(len(schedulers)) as pool:  # they share the grace period
                for scheduler in schedulers:
                    pool.submit(scheduler.shutdown, grace)

    @property
    def broken(self) -> bool:
        """Whether a scheduler has stopped by itself; only a restart helps."""
        return self.running and not all(scheduler.alive for scheduler in self.all_schedulers.values())

    @property
    def ready(self) -> bool:
        return self.running and not self.broken

    def find(self, name: str | None, mode: Mode | None = None) -> tuple[str, Scheduler]:
        """A model's name and scheduler; None: the first, and the model's usual mode."""
        name = next(iter(self.schedulers)) if name is None else name
        if name not in self.schedulers:
            message = f"model: no {name[:100]!r} here, only {', '.join(self.schedulers)}"
            raise Refusal(404, message, param="model", code="model_not_found")
        scheduler = self.schedulers[name]
        if mode != "ar" or scheduler.model.config.family == "ar":
            return name, scheduler
        if name not in self.ar:
            raise Refusal(400, f"mode: {name} decodes in blocks only: it has no causal_context", param="mode")
        return name, self.ar[name]

    def card(self, name: str) -> dict[str, Any]:
        """An entry of /v1/models."""
        model = self.find(name)[1].model
        about = {
            "family": model.config.family,
            "block_size": model.config.block,
            "candidates": model.config.nodes_per_mask,
            "edges": model.config.edge != "none",
            "context": model.config.context,
            "modes": list(model.config.modes),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
        }
        return {"id": name, "object": "model", "created": self.created, "owned_by": "dadlm", "dadlm": about}

    def collect(self) -> Iterator[Metric]:
        """Every scheduler's `Stats` for Prometheus, one series per model."""
        stats = {name: scheduler.stats() for name, scheduler in self.all_schedulers.items()}
        for field in fields(Stats):
            labels = ["model", "reason"] if field.name == "finished" else ["model"]
            make: Any = _KINDS[field.metadata["kind"]]
            family = make(f"dadlm_{field.name}", field.metadata["help"], labels=labels)
            for name, one in stats.items():
                for label, sample in _samples(getattr(one, field.name)):
                    family.add_metric([name, *label], *sample)
            yield family


def _samples(value: Any) -> list[tuple[list[str], list[Any]]]:
    """(labels beside the model, arguments of `add_metric`)."""
    if isinstance(value, dict):
        return [([reason], [count]) for reason, count in value.items()]
    if isinstance(value, Histogram):
        buckets = zip([*map(str, value.bounds), "+Inf"], accumulate(value.counts), strict=True)
        return [([], [list(buckets), value.sum])]
    return [([], [value])]

"""The models of a server, their schedulers and metrics."""

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import partial
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from dadlm.decode.lossless import LosslessEngine
from dadlm.decode.pair import target_and_draft
from dadlm.model import Mode, Model, in_mode
from dadlm.serve.refusals import Refusal
from dadlm.serve.scheduler import Scheduler
from dadlm.serve.settings import ServeSettings
from dadlm.serve.stats import Histogram, Stats

_KINDS = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily, "histogram": HistogramMetricFamily}


class Service(Collector):
    """`draft` names the model that drafts for AR models in mode lossless; None: they look up earlier text."""

    def __init__(
        self,
        models: Mapping[str, Model],
        settings: ServeSettings,
        schedule=Scheduler,
        draft: str | None = None,
    ) -> None:
        self.settings, self.created, self.running = settings, int(time.time()), False
        self._draft = None if draft is None else models[draft]
        for model in models.values():
            if self._draft is not None and model.config.family == "ar":
                target_and_draft(model, self._draft)  # refuses a wrong draft now, not at the first request
        self._schedule = partial(schedule, max_rows=settings.max_rows, max_queue=settings.max_queue)
        self.schedulers = {name: self._schedule(model) for name, model in models.items()}
        self.in_modes: dict[tuple[str, Mode], Scheduler] = {}
        """Of modes other than a model's first, made when one is asked for: most never are."""
        self._lock = threading.Lock()  # of `in_modes` and `running`
        self.registry = CollectorRegistry()  # its own: a process may run several servers
        self.registry.register(self)

    @property
    def all_schedulers(self) -> dict[str, Scheduler]:
        """By their names in the metrics."""
        return self.schedulers | {f"{name} ({mode})": one for (name, mode), one in self.in_modes.items()}

    def start(self) -> None:
        for scheduler in self.all_schedulers.values():
            scheduler.start()
        self.running = True

    def close(self, grace: float) -> None:
        """Accept no more requests, give the running ones `grace` seconds, and end the rest."""
        with self._lock:
            was_running, self.running = self.running, False
        if was_running:
            schedulers = self.all_schedulers.values()
            with ThreadPoolExecutor(len(schedulers)) as pool:  # side by side: they share the grace period
                for scheduler in schedulers:
                    pool.submit(scheduler.shutdown, grace)

    @property
    def broken(self) -> bool:
        """Whether a scheduler has died; only a restart helps."""
        return self.running and not all(scheduler.alive for scheduler in self.all_schedulers.values())

    @property
    def ready(self) -> bool:
        return self.running and not self.broken

    @property
    def chats(self) -> list[str]:
        """The models that have a chat template."""
        tokenizers = {name: scheduler.model.tokenizer for name, scheduler in self.schedulers.items()}
        return [name for name, tokenizer in tokenizers.items() if tokenizer is not None and tokenizer.chat]

    def find(self, name: str | None, mode: Mode | None = None) -> tuple[str, Scheduler]:
        """A model's name and scheduler; by default of the first model, and of the model's first mode."""
        name = next(iter(self.schedulers)) if name is None else name
        if name not in self.schedulers:
            message = f"model: no {name[:100]!r} here, only {', '.join(self.schedulers)}"
            raise Refusal(404, message, param="model", code="model_not_found")
        scheduler = self.schedulers[name]
        config = scheduler.model.config
        if mode in (None, config.modes[0]) or (config.family == "ar" and mode == "diffusion"):
            return name, scheduler
        if mode not in config.modes:
            raise Refusal(400, f"mode: {name} decodes in blocks only: it has no causal_context", param="mode")
        return name, self._in_mode(name, mode)

    def _in_mode(self, name: str, mode: Mode) -> Scheduler:
        """A model's scheduler for another mode, which runs beside its own."""
        with self._lock:
            if (name, mode) not in self.in_modes:
                if not self.running:
                    raise Refusal(
                        503, "the server is shutting down and takes no new requests", code="shutdown"
                    )
                scheduler = self._make(self.schedulers[name].model, mode)
                scheduler.start()
                self.in_modes = {**self.in_modes, (name, mode): scheduler}  # `all_schedulers` takes no lock
            return self.in_modes[name, mode]

    def _make(self, model: Model, mode: Mode) -> Scheduler:
        if mode != "lossless":
            return self._schedule(in_mode(model, mode))
        target, draft = target_and_draft(model, self._draft if model.config.family == "ar" else None)
        return self._schedule(target, engine=LosslessEngine(target, draft, lockstep=False))

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
    """(labels after the model's name, further arguments of `add_metric`)."""
    if isinstance(value, dict):
        return [([reason], [count]) for reason, count in value.items()]
    if isinstance(value, Histogram):
        buckets = zip([*map(str, value.bounds), "+Inf"], accumulate(value.counts), strict=True)
        return [([], [list(buckets), value.sum])]
    return [([], [value])]

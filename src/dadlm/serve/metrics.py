"""GET /metrics: the schedulers' statistics for Prometheus, one series per model."""

from collections.abc import Iterator
from dataclasses import fields
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from dadlm.serve.service import Service
from dadlm.serve.stats import Histogram, Stats

_KINDS = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily, "histogram": HistogramMetricFamily}


class _Schedulers(Collector):
    """Reads every scheduler's `Stats` when Prometheus asks."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def collect(self) -> Iterator[Metric]:
        stats = {name: served.scheduler.stats() for name, served in self.service.served.items()}
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


def registry_of(service: Service) -> CollectorRegistry:
    """A registry of its own: a process may run several servers."""
    registry = CollectorRegistry()
    registry.register(_Schedulers(service))
    return registry

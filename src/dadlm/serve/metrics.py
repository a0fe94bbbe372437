"""GET /metrics: the schedulers' statistics for Prometheus, one series per model."""

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from dadlm.serve.service import Service
from dadlm.serve.stats import Histogram

# Kind, metric, field of Stats, help.
_METRICS: list[tuple[type, str, str, str]] = [
    (GaugeMetricFamily, "queue", "queue", "Requests waiting."),
    (GaugeMetricFamily, "queue_limit", "max_queue", "Requests that may wait."),
    (GaugeMetricFamily, "rows", "rows", "Requests being decoded."),
    (GaugeMetricFamily, "rows_limit", "max_rows", "Requests that may be decoded at once."),
    (GaugeMetricFamily, "tokens_per_second", "tokens_per_second", "Committed tokens, last ten seconds."),
    (CounterMetricFamily, "submitted", "submitted", "Requests accepted."),
    (CounterMetricFamily, "refused", "refused", "Requests refused because the queue was full."),
    (CounterMetricFamily, "prompt_tokens", "prompt_tokens", "Prompt tokens of finished requests."),
    (CounterMetricFamily, "tokens", "tokens", "Committed tokens."),
    (CounterMetricFamily, "forward_passes", "forward_passes", "Denoising passes of the model."),
    (CounterMetricFamily, "row_passes", "row_passes", "Denoising passes, counted once per row."),
    (CounterMetricFamily, "cache_passes", "cache_passes", "Finished blocks written to the cache."),
    (CounterMetricFamily, "out_of_memory", "out_of_memory", "Times the number of rows was halved."),
    (HistogramMetricFamily, "queue_seconds", "queue_seconds", "Time a request waited."),
    (HistogramMetricFamily, "first_block_seconds", "first_seconds", "Time to the first committed block."),
    (HistogramMetricFamily, "total_seconds", "total_seconds", "Time from submission to the end."),
    (HistogramMetricFamily, "batch_rows", "batch_rows", "Rows of each forward pass."),
    (HistogramMetricFamily, "tokens_per_forward", "tokens_per_forward", "Of each finished request."),
]


class _Schedulers(Collector):
    """Reads every scheduler's `Stats` when Prometheus asks."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def collect(self) -> Iterator[Metric]:
        stats = {name: served.scheduler.stats() for name, served in self.service.served.items()}
        for kind, metric, field, text in _METRICS:
            family = kind(f"dadlm_{metric}", text, labels=["model"])
            for name, one in stats.items():
                value = getattr(one, field)
                family.add_metric([name], *(_buckets(value) if isinstance(value, Histogram) else [value]))
            yield family
        finished = CounterMetricFamily("dadlm_finished", "Requests ended.", labels=["model", "reason"])
        for name, one in stats.items():
            for reason, count in one.finished.items():
                finished.add_metric([name, reason], count)
        yield finished


def _buckets(histogram: Histogram) -> tuple[list[tuple[str, int]], float]:
    bounds = [*map(str, histogram.bounds), "+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True)), histogram.sum


def registry_of(service: Service) -> CollectorRegistry:
    """A registry of its own: a process may run several servers."""
    registry = CollectorRegistry()
    registry.register(_Schedulers(service))
    return registry

"""GET /metrics: the schedulers' statistics for Prometheus, one series per model."""

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from dadlm.serve.service import Service

# Metric: (field of Stats, help).
_GAUGES = {
    "queue": ("queue", "Requests waiting."),
    "queue_limit": ("max_queue", "Requests that may wait."),
    "rows": ("rows", "Requests being decoded."),
    "rows_limit": ("max_rows", "Requests that may be decoded at once."),
    "tokens_per_second": ("tokens_per_second", "Committed tokens over the last ten seconds."),
}
_COUNTERS = {
    "submitted": ("submitted", "Requests accepted."),
    "refused": ("refused", "Requests refused because the queue was full."),
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of finished requests."),
    "tokens": ("tokens", "Committed tokens."),
    "forward_passes": ("forward_passes", "Denoising passes of the model."),
    "row_passes": ("row_passes", "Denoising passes, counted once per row."),
    "cache_passes": ("cache_passes", "Finished blocks written to the cache."),
    "out_of_memory": ("out_of_memory", "Times the number of rows was halved."),
}
_HISTOGRAMS = {
    "queue_seconds": ("queue_seconds", "Time a request waited."),
    "first_block_seconds": ("first_seconds", "Time to the first committed block."),
    "total_seconds": ("total_seconds", "Time from submission to the end."),
    "batch_rows": ("batch_rows", "Rows of each forward pass."),
    "tokens_per_forward": ("tokens_per_forward", "Tokens per forward pass of a request."),
}


class _Schedulers(Collector):
    """Reads every scheduler's `Stats` when Prometheus asks."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def collect(self) -> Iterator[Metric]:
        stats = {name: served.scheduler.stats() for name, served in self.service.served.items()}
        for kind, metrics in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for metric, (field, text) in metrics.items():
                family = kind(f"dadlm_{metric}", text, labels=["model"])
                for name, one in stats.items():
                    family.add_metric([name], getattr(one, field))
                yield family
        finished = CounterMetricFamily(
            "dadlm_finished", "Requests that ended, by reason.", labels=["model", "reason"]
        )
        for name, one in stats.items():
            for reason, count in one.finished.items():
                finished.add_metric([name, reason], count)
        yield finished
        for metric, (field, text) in _HISTOGRAMS.items():
            family = HistogramMetricFamily(f"dadlm_{metric}", text, labels=["model"])
            for name, one in stats.items():
                histogram = getattr(one, field)
                bounds = [*map(str, histogram.bounds), "+Inf"]
                buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
                family.add_metric([name], buckets, histogram.sum)
            yield family


def registry_of(service: Service) -> CollectorRegistry:
    """A registry of its own: a process may run several servers."""
    registry = CollectorRegistry()
    registry.register(_Schedulers(service))
    return registry

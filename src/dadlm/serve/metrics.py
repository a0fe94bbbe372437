"""GET /metrics: the schedulers' counts in Prometheus's text format, one series for each model."""

from collections.abc import Callable, Iterator

from dadlm.serve.service import Service
from dadlm.serve.stats import Histogram, Stats

_GAUGES: dict[str, tuple[str, Callable[[Stats], float]]] = {
    "queue": ("Requests that wait.", lambda stats: stats.queue),
    "queue_limit": ("Requests that may wait.", lambda stats: stats.max_queue),
    "rows": ("Requests in work.", lambda stats: stats.rows),
    "rows_limit": ("Requests that may be in work.", lambda stats: stats.max_rows),
    "tokens_per_second": ("Committed tokens, lately.", lambda stats: stats.tokens_per_second),
}
_COUNTERS: dict[str, tuple[str, Callable[[Stats], float]]] = {
    "submitted_total": ("Requests taken.", lambda stats: stats.submitted),
    "refused_total": ("Requests refused because the queue was full.", lambda stats: stats.refused),
    "prompt_tokens_total": ("Prompt tokens of finished requests.", lambda stats: stats.prompt_tokens),
    "tokens_total": ("Committed tokens.", lambda stats: stats.tokens),
    "forward_passes_total": ("Denoising passes of the model.", lambda stats: stats.forward_passes),
    "row_passes_total": ("The same, for each row that took part.", lambda stats: stats.row_passes),
    "cache_passes_total": ("Finished blocks written to the cache.", lambda stats: stats.cache_passes),
    "out_of_memory_total": ("Times that the rows were halved.", lambda stats: stats.out_of_memory),
}
_HISTOGRAMS: dict[str, tuple[str, Callable[[Stats], Histogram]]] = {
    "queue_seconds": ("Time that requests waited.", lambda stats: stats.queue_seconds),
    "first_block_seconds": ("Time to the first committed block.", lambda stats: stats.first_seconds),
    "total_seconds": ("Time from submission to the end.", lambda stats: stats.total_seconds),
    "batch_rows": ("Rows of each forward pass.", lambda stats: stats.batch_rows),
    "tokens_per_forward": ("Tokens per forward pass of a request.", lambda stats: stats.tokens_per_forward),
}


def metrics_text(service: Service) -> str:
    everyone = {served.name: served.scheduler.stats() for served in service.served.values()}
    lines = [*_numbers("gauge", _GAUGES, everyone), *_numbers("counter", _COUNTERS, everyone)]
    lines += _head("finished_total", "counter", "Requests that came to an end, by reason.")
    for name, stats in everyone.items():
        lines += [_line("finished_total", n, model=name, reason=why) for why, n in stats.finished.items()]
    for metric, (told, read) in _HISTOGRAMS.items():
        lines += _head(metric, "histogram", told)
        for name, stats in everyone.items():
            lines += _histogram(metric, name, read(stats))
    return "\n".join(lines) + "\n"


def _numbers(kind: str, metrics, everyone: dict[str, Stats]) -> Iterator[str]:
    for metric, (told, read) in metrics.items():
        yield from _head(metric, kind, told)
        for name, stats in everyone.items():
            yield _line(metric, read(stats), model=name)


def _histogram(metric: str, name: str, histogram: Histogram) -> Iterator[str]:
    """Prometheus counts what is at most each bound; ours are counted bound by bound."""
    total = 0
    for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
        total += count
        yield _line(f"{metric}_bucket", total, model=name, le=str(bound))
    yield _line(f"{metric}_sum", histogram.sum, model=name)
    yield _line(f"{metric}_count", total, model=name)


def _head(metric: str, kind: str, told: str) -> list[str]:
    return [f"# HELP dadlm_{metric} {told}", f"# TYPE dadlm_{metric} {kind}"]


def _line(metric: str, value: float, **labels: str) -> str:
    joined = ",".join(f'{name}="{_escape(text)}"' for name, text in labels.items())
    return f"dadlm_{metric}{{{joined}}} {value}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

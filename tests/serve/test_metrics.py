"""/metrics: what Prometheus's own parser reads is what the scheduler counted."""

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.serve.fakes import FakeScheduler, fake_service
from tests.serve.running import letter_model, running, settings

from dadlm.serve.service import Service
from dadlm.serve.stats import Stats


def read(text: str) -> dict[tuple[str, ...], float]:
    """(name, model, other labels...) → value; every family has a type and a help text."""
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.type in ("gauge", "counter", "histogram") and family.documentation, family
        for sample in family.samples:
            others = [value for label, value in sample.labels.items() if label != "model"]
            key = (sample.name, sample.labels["model"], *others)
            assert key not in found, f"{key} occurs twice"
            found[key] = sample.value
    return found


def test_numbers_of_a_served_text() -> None:
    model = letter_model("bd3lm")
    with running(Service({"one": model}, settings(max_rows=3, max_queue=7))) as server:
        fields = {"prompt": "the cat", "max_tokens": 8, "sampler": "random", "steps": 2, "seed": 1}
        answers = [server.post("/v1/completions", **fields)[1] for _ in range(2)]
        status, headers, content = server.ask("GET", "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    found = read(content.decode())
    assert found["dadlm_rows_limit", "one"] == 3 and found["dadlm_queue_limit", "one"] == 7
    assert found["dadlm_rows", "one"] == found["dadlm_queue", "one"] == 0
    assert found["dadlm_submitted_total", "one"] == found["dadlm_finished_total", "one", "length"] == 2
    assert found["dadlm_tokens_total", "one"] == sum(a["usage"]["completion_tokens"] for a in answers)
    assert found["dadlm_prompt_tokens_total", "one"] == sum(a["usage"]["prompt_tokens"] for a in answers)
    passes = sum(a["dadlm"]["forward_passes"] for a in answers)
    assert found["dadlm_row_passes_total", "one"] == passes
    assert found["dadlm_batch_rows_bucket", "one", "1"] == found["dadlm_batch_rows_sum", "one"] == passes
    for name in ("queue_seconds", "first_block_seconds", "total_seconds", "tokens_per_forward"):
        assert found[f"dadlm_{name}_count", "one"] == found[f"dadlm_{name}_bucket", "one", "+Inf"] == 2


def test_buckets_are_cumulative_and_servers_count_apart() -> None:
    stats = Stats()
    for value in (0.005, 0.01, 0.02, 1000.0):
        stats.queue_seconds.add(value)
    scheduler, other = FakeScheduler(), FakeScheduler()
    scheduler.stats = lambda: stats  # type: ignore[method-assign]
    first, second = (fake_service(letter_model("dadlm"), one).registry for one in (scheduler, other))
    found = read(generate_latest(first).decode())
    buckets = [found["dadlm_queue_seconds_bucket", "fake", bound] for bound in ("0.01", "0.03", "+Inf")]
    assert buckets == [2, 3, 4]
    assert found["dadlm_queue_seconds_sum", "fake"] == sum((0.005, 0.01, 0.02, 1000.0))
    assert read(generate_latest(second).decode())["dadlm_queue_seconds_count", "fake"] == 0

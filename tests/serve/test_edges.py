"""Models with token edges behind the scheduler and over HTTP: texts, traces and log-probabilities."""

import threading

import pytest
import torch
from tests.decode.test_chain import edge_model
from tests.decode.tiny import prompt_of, silence_eot
from tests.serve.company import alone, drain, events_of, gap_requests, requests, truth_of
from tests.serve.running import letter_model, running, settings

from dadlm import DecodeSettings, Model, StepEvent, generate, stream
from dadlm.model import successors
from dadlm.serve import Committed, Request, Scheduler
from dadlm.serve.service import Service

every_family = pytest.mark.parametrize("family", ["bd3lm", "dadlm"])


def model_of(family: str) -> Model:
    return edge_model(family, N=4, vocab=30, context=64)


@every_family
def test_texts_of_every_way_to_decode_are_those_of_rows_alone(family: str) -> None:
    model = model_of(family)
    scheduler = Scheduler(model, max_rows=6)
    jobs = [scheduler.submit(request) for request in [*requests(), *gap_requests()]]
    drain(scheduler)
    for job in jobs:
        assert truth_of(job) == alone(model, job.request), job.request.settings


@pytest.mark.parametrize(
    "options",
    [{"sampler": "random", "steps": 2}, {"sampler": "entropy", "bound": 6.0}, {"path": "viterbi"}],
    ids=str,
)
@every_family
def test_a_trace_and_logprobs_have_probabilities_beside_the_left_neighbour(family: str, options: dict):
    model = silence_eot(model_of(family))
    scheduler = Scheduler(model, max_rows=3)
    how = DecodeSettings(max_new_tokens=9, temperature=0.5, **options)
    ids = tuple(prompt_of(5))
    job = scheduler.submit(Request(ids=ids, settings=how, seed=4, logprobs=1, trace=True))
    scheduler.submit(Request(ids=tuple(prompt_of(9)), settings=DecodeSettings(max_new_tokens=20), seed=1))
    drain(scheduler)
    events = events_of(job)
    traced = [event for event in events if isinstance(event, StepEvent)]
    given = [one for event in events if isinstance(event, Committed) for one in event.logprobs or []]
    expected = {}
    for event, shown in zip(stream(model, ids, seed=4, settings=how), traced, strict=True):
        assert event.drawn == shown.drawn and event.has_edges
        for name in ("probability", "alone"):
            pairs = zip(getattr(event, name), getattr(shown, name), strict=True)
            assert all(a == b if a is None else a == pytest.approx(b, abs=2e-5) for a, b in pairs)
        for i, fixed in enumerate(event.fixed):
            if fixed:
                expected[event.block * 4 + i] = (event.drawn[i], event.probability[i])
    ordered = [expected[5 + i] for i in range(9)]
    assert [one.token for one in given] == [token for token, _ in ordered]
    logp = torch.tensor([p for _, p in ordered]).log()
    assert torch.allclose(torch.tensor([one.logprob for one in given]), logp, atol=1e-4)


def test_over_http() -> None:
    served = letter_model("dadlm", edge="bilinear", edge_rank=8)
    options = {"sampler": "entropy", "bound": 5.0}
    with running(Service({"edges": served}, settings())) as server:
        chunks = server.chunks(
            "/v1/completions", prompt="the cat", max_tokens=12, seed=3, trace=True, **options
        )
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk.get("choices"))
    assert text == generate(served, "the cat", max_new_tokens=12, seed=3, **options).texts[0]
    steps = [chunk["dadlm"]["step"] for chunk in chunks if "step" in chunk.get("dadlm", {})]
    assert steps and all({"drawn", "probability", "alone"} <= step.keys() for step in steps)
    assert any(step["probability"] != step["alone"] for step in steps)


def test_over_http_successors_are_found_outside_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """V² scores take their time: memory and time for them are taken when a client asks for a shortlist."""
    threads, table = [], successors._table
    monkeypatch.setattr(
        successors, "_table", lambda *parts: threads.append(threading.current_thread().name) or table(*parts)
    )
    served = letter_model("bd3lm", edge="bilinear", edge_rank=8, seed=3)
    with running(Service({"edges": served}, settings())) as server:
        fields = {"prompt": "the cat", "max_tokens": 5, "seed": 3}
        assert server.post("/v1/completions", **fields)[0] == 200 and not threads
        for _ in range(2):
            assert server.post("/v1/completions", shortlist=7, **fields)[0] == 200
    assert len(threads) == 1 and "scheduler" not in threads[0]


@every_family
def test_with_graphs_successors_are_found_before_there_are_rows(
    family: str, monkeypatch: pytest.MonkeyPatch, as_on_cuda: None
) -> None:
    """V² scores take their time, and would hold up whoever is being answered."""
    found, table = [], successors._table
    monkeypatch.setattr(successors, "_table", lambda *parts: found.append(1) or table(*parts))
    model = model_of(family)
    scheduler = Scheduler(model, max_rows=4)
    assert len(found) == 1
    for shortlist in (None, 5, 9, None, 5):
        how = DecodeSettings(max_new_tokens=9, shortlist=shortlist)
        job = scheduler.submit(Request(ids=tuple(prompt_of(5)), settings=how, seed=4))
        if shortlist != 5:  # so that some lists come while others are in work
            drain(scheduler)
            assert truth_of(job) == alone(model, job.request)
    drain(scheduler)
    assert len(found) == 1

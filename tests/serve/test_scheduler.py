"""Who waits, who joins, who leaves and what they are told; ticks are driven by hand where order matters."""

import logging
import threading
from collections import Counter
from itertools import accumulate

import pytest
import torch
from tests.decode.tiny import prompt_of, silence_eot, tiny
from tests.serve.company import alone, drain, events_of, finished, requests, text_of, truth_of

from dadlm import ConfigError, DecodeSettings, Model, generate, stream
from dadlm.decode.engine import Engine
from dadlm.decode.slots import Slots
from dadlm.serve import (
    Committed,
    Finished,
    QueueFull,
    Request,
    Scheduler,
    ShuttingDown,
    Traced,
    detail,
)
from dadlm.serve import scheduler as scheduler_module
from dadlm.tokens.vocabularies import train_bpe

BYTES = train_bpe(["ab ab"], 258, show_progress=False)


@pytest.fixture(scope="module")
def model() -> Model:
    return silence_eot(tiny("dadlm"))


@pytest.fixture(scope="module")
def speaking() -> Model:
    """Writes random bytes: all kinds of half characters."""
    return tiny("dadlm", vocab=BYTES.vocab_size + 1, tokenizer=BYTES)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def ask(tokens: int = 12, seed: int = 0, prompt: int = 5, **changes) -> Request:
    settings = DecodeSettings(max_new_tokens=tokens)
    return Request(ids=tuple(prompt_of(prompt)), **({"settings": settings, "seed": seed} | changes))


# --- places


def test_who_comes_first_joins_first_and_short_ones_pass_long_ones(model):
    scheduler = Scheduler(model, max_rows=2)
    ended = []
    jobs = [scheduler.submit(ask(tokens)) for tokens in (40, 3, 3, 3)]
    while len(ended) < 4:
        scheduler.tick()
        ended += [
            i
            for i, job in enumerate(jobs)
            if i not in ended and job._events and isinstance(job._events[-1], Finished)
        ]
    assert ended == [1, 2, 3, 0]


def test_a_cancelled_request_frees_its_row_within_two_ticks(model):
    scheduler = Scheduler(model, max_rows=1)
    first, second = scheduler.submit(ask(40)), scheduler.submit(ask(3, seed=1))
    for _ in range(3):
        scheduler.tick()
    assert (scheduler.stats().rows, scheduler.stats().queue) == (1, 1)
    first.cancel()
    scheduler.tick()
    assert scheduler.stats().queue == 0  # the second has the row
    assert finished(events_of(first, 0)).reason == "cancelled"
    drain(scheduler)
    assert truth_of(second) == alone(model, second.request)


def test_a_request_cancelled_while_it_waits_never_runs(model):
    scheduler = Scheduler(model, max_rows=1)
    scheduler.submit(ask(40))
    waiting = scheduler.submit(ask())
    scheduler.tick()
    waiting.cancel()
    scheduler.tick()
    end = finished(events_of(waiting, 0))
    assert (end.reason, end.forward_passes, end.completion_tokens) == ("cancelled", 0, 0)


def test_a_full_queue_says_when_to_come_back(model):
    clock = Clock()
    scheduler = Scheduler(model, max_rows=1, max_queue=2, clock=clock)
    for seed in range(2):
        scheduler.submit(ask(3, seed))
    with pytest.raises(QueueFull, match="2 requests are waiting") as full:
        scheduler.submit(ask())
    assert full.value.retry_after == 1.0  # nothing measured yet
    for _ in range(2):  # one request in three seconds
        while scheduler.stats().rows + scheduler.stats().queue:
            scheduler.tick()
            clock.now += 0.6
        scheduler.submit(ask(3))
        scheduler.submit(ask(3))
    clock.now += 1
    with pytest.raises(QueueFull) as full:
        scheduler.submit(ask())
    ends = sum(scheduler.stats().finished.values())
    assert ends == 4
    assert 1.0 <= full.value.retry_after <= 10.0
    assert scheduler.stats().refused == 2


@pytest.mark.parametrize(("seconds", "told"), [(0.5, 1.0), (12, 12.0), (500, 120.0)])
def test_how_long_to_stay_away_is_how_long_texts_take(model, seconds: float, told: float):
    clock = Clock()
    scheduler = Scheduler(model, max_rows=1, max_queue=1, clock=clock)
    for _ in range(3):
        scheduler.submit(ask(8))
        scheduler.tick()
        clock.now += seconds
        drain(scheduler)
        clock.now += 1000  # nobody asks for anything: that says nothing
    scheduler.submit(ask())
    with pytest.raises(QueueFull) as full:
        scheduler.submit(ask())
    assert full.value.retry_after == told


def test_deadlines_end_those_who_wait_and_those_who_run(model):
    clock = Clock()
    scheduler = Scheduler(model, max_rows=1, clock=clock)
    running, waiting = scheduler.submit(ask(40, deadline=5.0)), scheduler.submit(ask(deadline=2.0))
    for _ in range(8):
        scheduler.tick()
    clock.now = 2.5
    scheduler.tick()
    assert finished(events_of(waiting, 0)).reason == "deadline"
    clock.now = 5.0
    scheduler.tick()
    events = events_of(running, 0)
    assert finished(events).reason == "deadline"
    tokens = [token for event in events if isinstance(event, Committed) for token in event.tokens]
    assert tokens and tokens == alone(model, running.request)[0][: len(tokens)]
    assert (finished(events).seconds_queued, finished(events).seconds_running) == (0.0, 5.0)


def test_what_the_model_cannot_do_is_refused_at_once(model):
    scheduler = Scheduler(model)
    for request, message in [
        (ask(60), "context"),
        (Request(ids=(29,), settings=DecodeSettings(), seed=0), "ids"),
        (ask(seed=2**63), "64 bits"),
        (ask(settings=DecodeSettings(sampler="random", steps=9)), "steps"),
        (ask(gaps=((0, 1),), settings=DecodeSettings()), "gap"),
    ]:
        with pytest.raises(ConfigError, match=message):
            scheduler.submit(request)
    assert scheduler.stats().queue == 0


def test_numbers_of_rows_must_make_sense(model):
    with pytest.raises(ConfigError, match="max_rows"):
        Scheduler(model, max_rows=0)


# --- what is given


def test_text_comes_in_whole_characters_and_is_the_text_alone(speaking):
    scheduler = Scheduler(speaking, max_rows=4)
    jobs = [scheduler.submit(ask(30, seed)) for seed in range(6)]
    drain(scheduler)
    for seed, job in enumerate(jobs):
        out = generate(speaking, [job.request.ids], seed=seed, max_new_tokens=30)
        events = events_of(job)
        assert text_of(events) == out.texts[0]
        assert sum(isinstance(event, Committed) for event in events) > 2


@pytest.mark.parametrize("family", ("ar", "dadlm"))
def test_stop_texts_cut_the_text_wherever_they_lie(family: str):
    model = silence_eot(tiny(family, vocab=BYTES.vocab_size + 1, tokenizer=BYTES))
    model.head.linear.bias.data[: BYTES.vocab_size] -= torch.tensor(  # letters only
        [
            0.0 if BYTES.decode([id_]).isalpha() and BYTES.decode([id_]).isascii() else 1e4
            for id_ in range(BYTES.vocab_size)
        ]
    )
    whole = generate(model, [prompt_of(5)], seed=3, max_new_tokens=30).texts[0]
    scheduler = Scheduler(model, max_rows=8)
    jobs = {}
    for at in range(1, 9):  # blocks begin at characters 3 and 7
        stop = whole[at : at + 3]
        jobs[at] = scheduler.submit(ask(30, 3, stop=("never", stop)))
    drain(scheduler)
    for job in jobs.values():
        events = events_of(job)
        assert text_of(events) == whole[: whole.find(job.request.stop[1])]
        end = finished(events)
        assert (end.reason, end.completion_tokens < 30) == ("stop", True)
        blocks = sum(bool(event.tokens) for event in events if isinstance(event, Committed))
        assert end.cache_passes == (0 if family == "ar" else blocks - 1)  # nobody reads the last


def test_the_reason_is_stop_at_end_of_text_and_length_without(model):
    scheduler = Scheduler(model)
    job = scheduler.submit(ask(6))
    ending = tiny("dadlm")
    other = Scheduler(ending)
    jobs = [other.submit(ask(30, seed)) for seed in range(8)]
    drain(scheduler), drain(other)
    assert finished(events_of(job)).reason == "length"
    for one in jobs:
        events = events_of(one)
        tokens = [token for event in events if isinstance(event, Committed) for token in event.tokens]
        assert finished(events).reason == ("stop" if tokens[-1] == 28 else "length")


@pytest.mark.parametrize("family", ("ar", "mdlm", "bd3lm", "dadlm"))
def test_a_trace_is_what_stream_gives_and_only_who_asks_gets_one(family: str):
    model = silence_eot(tiny(family))
    scheduler = Scheduler(model, max_rows=4)
    plain, traced = scheduler.submit(ask(20, prompt=9)), scheduler.submit(ask(10, 4, trace=True))
    drain(scheduler)
    events = [event.event for event in events_of(traced) if isinstance(event, Traced)]
    expected = list(stream(model, traced.request.ids, seed=4, max_new_tokens=10))
    assert len(events) == len(expected)
    for event, other in zip(events, expected, strict=True):
        for name in ("block", "step", "ids", "anchor", "path", "fixed", "infilled"):
            assert getattr(event, name) == getattr(other, name)
        assert torch.allclose(torch.tensor(event.transition), torch.tensor(other.transition), atol=1e-5)
        assert [[[t[0] for t in k] for k in group] for group in event.top_tokens] == [
            [[t[0] for t in k] for k in group] for group in other.top_tokens
        ]
    assert not any(isinstance(event, Traced) for event in events_of(plain))


def test_logprobs_are_those_of_the_node_at_the_step_that_fixed_the_token(model):
    scheduler = Scheduler(model, max_rows=3)
    settings = DecodeSettings(max_new_tokens=9, sampler="random", steps=2, temperature=0.5)
    job = scheduler.submit(ask(settings=settings, seed=4, logprobs=2))
    scheduler.submit(ask(20, prompt=9))
    drain(scheduler)
    given = [one for event in events_of(job) if isinstance(event, Committed) for one in event.logprobs or []]
    expected = {}
    for event in stream(model, job.request.ids, seed=4, settings=settings, top_tokens=28):
        for i, fixed in enumerate(event.fixed):
            if fixed:
                node = event.top_tokens[i][event.path[i]]
                p = {token: p for token, _, p in node}
                expected[event.block * 4 + i] = (event.ids[i], p[event.ids[i]], [t for t, *_ in node[:2]])
    ordered = [expected[5 + i] for i in range(9)]
    assert [one.token for one in given] == [token for token, *_ in ordered]
    assert [[t for t, *_ in one.top] for one in given] == [best for *_, best in ordered]
    logp = torch.tensor([p for _, p, _ in ordered]).log()
    assert torch.allclose(torch.tensor([one.logprob for one in given]), logp, atol=1e-4)


def test_each_block_tells_the_passes_up_to_it(model):
    scheduler = Scheduler(model)
    request = ask(13, seed=3, settings=DecodeSettings(max_new_tokens=13, sampler="random", steps=2))
    job = scheduler.submit(request)
    drain(scheduler)
    told = [event.forward_passes for event in events_of(job) if isinstance(event, Committed)]
    steps = Counter(event.block for event in stream(model, request.ids, seed=3, settings=request.settings))
    assert told == list(accumulate(steps.values())) and len(told) == 4


# --- when things go wrong


def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "dadlm.serve")


def test_a_poisoned_request_dies_alone(model, monkeypatch: pytest.MonkeyPatch, caplog):
    quiet(caplog)
    run = Engine._pass

    def poisoned(self, model, rows, *how):
        if any(row.seed == 13 for row in self.slots.rows[rows]):
            raise RuntimeError("secret internals")
        return run(self, model, rows, *how)

    monkeypatch.setattr(Engine, "_pass", poisoned)
    scheduler = Scheduler(model, max_rows=3)
    asked = [ask(10, seed, prompt=seed % 7) for seed in range(10, 16)]
    jobs = [scheduler.submit(request) for request in asked]
    drain(scheduler)
    for request, job in zip(asked, jobs, strict=True):
        if request.seed != 13:
            assert truth_of(job) == alone(model, request)
            continue
        end = finished(events_of(job))
        assert end.reason == "error" and "secret" not in str(end.message)


def test_a_failing_detail_ends_only_who_asked_for_it(model, monkeypatch: pytest.MonkeyPatch, caplog):
    quiet(caplog)
    monkeypatch.setattr(detail, "trace", lambda *_: 1 / 0)
    scheduler = Scheduler(model)
    bad, good = scheduler.submit(ask(trace=True)), scheduler.submit(ask(seed=1))
    drain(scheduler)
    assert finished(events_of(bad)).reason == "error"
    assert truth_of(good) == alone(model, good.request)


def test_a_text_that_cannot_be_decoded_ends_alone(speaking, monkeypatch: pytest.MonkeyPatch, caplog):
    quiet(caplog)
    scheduler = Scheduler(speaking)
    bad, good = scheduler.submit(ask(30)), scheduler.submit(ask(30, seed=1))
    scheduler.tick()
    task = next(iter(scheduler._tasks.values()))
    monkeypatch.setattr(task.pieces, "_decoded", lambda _: 1 / 0)
    drain(scheduler)
    assert finished(events_of(bad)).reason == "error"
    assert truth_of(good) == alone(speaking, good.request)


def test_out_of_memory_halves_the_rows_and_no_text_changes(model, monkeypatch: pytest.MonkeyPatch, caplog):
    quiet(caplog)
    run = Engine._pass

    def too_much(self, model, rows, *how):
        if rows.stop - rows.start > 2:
            raise torch.OutOfMemoryError("full")
        return run(self, model, rows, *how)

    scheduler = Scheduler(model, max_rows=8)
    asked = requests(8)
    jobs = [scheduler.submit(request) for request in asked]
    for _ in range(5):
        scheduler.tick()
    monkeypatch.setattr(Engine, "_pass", too_much)
    drain(scheduler)
    assert scheduler.max_rows == 2 and scheduler.stats().out_of_memory == 2
    assert [truth_of(job) for job in jobs] == [alone(model, request) for request in asked]


def test_out_of_memory_even_alone_is_told(model, monkeypatch: pytest.MonkeyPatch, caplog):
    quiet(caplog)

    def full(self, *how):
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(Engine, "_pass", full)
    scheduler = Scheduler(model, max_rows=2)
    jobs = [scheduler.submit(ask(seed=seed)) for seed in range(3)]
    drain(scheduler)
    assert {finished(events_of(job)).message for job in jobs} == {
        "out of memory, even alone; ask for fewer tokens"
    }


def test_steps_that_nobody_reads_end_their_request(model, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scheduler_module, "_UNREAD_STEPS", 3)
    scheduler = Scheduler(model)
    bad, good = scheduler.submit(ask(40, trace=True)), scheduler.submit(ask(40, seed=1))
    drain(scheduler)
    assert finished(events_of(bad)).reason == "cancelled" and bad.unread == 0
    assert truth_of(good) == alone(model, good.request), "what is not traced may be read later"


# --- the thread


def test_many_clients_at_once_get_the_texts_they_would_get_alone(model):
    scheduler = Scheduler(model, max_rows=4).start()
    answers = {}

    def client(index: int, request: Request) -> None:
        answers[index] = truth_of(scheduler.submit(request))

    clients = [threading.Thread(target=client, args=item, daemon=True) for item in enumerate(requests())]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join(60)
    assert scheduler.alive
    scheduler.shutdown(60)
    assert not scheduler.alive
    assert answers == {i: alone(model, request) for i, request in enumerate(requests())}
    stats = scheduler.stats()
    assert stats.tokens == sum(len(tokens) for tokens, *_ in answers.values())
    assert stats.row_passes == sum(passes for _, passes, _ in answers.values()) == stats.batch_rows.sum
    assert stats.cache_passes == sum(writes for *_, writes in answers.values())
    assert stats.submitted == sum(stats.finished.values()) == stats.total_seconds.count == len(answers)


def test_shutdown_finishes_what_was_accepted_and_takes_nothing_new(model):
    scheduler = Scheduler(model, max_rows=2).start()
    jobs = [scheduler.submit(request) for request in requests(6)]
    scheduler.shutdown(60)
    assert [truth_of(job) for job in jobs] == [alone(model, request) for request in requests(6)]
    with pytest.raises(ShuttingDown):
        scheduler.submit(ask())


def test_a_scheduler_that_breaks_tells_everyone(model, monkeypatch: pytest.MonkeyPatch, caplog):
    quiet(caplog)

    def broken(self, row):
        raise RuntimeError("the device is gone")

    scheduler = Scheduler(model, max_rows=1)
    jobs = [scheduler.submit(ask(40, seed)) for seed in range(3)]
    monkeypatch.setattr(Engine, "remove", broken)
    jobs[0].cancel()
    scheduler.tick()  # it waits still: no row to give back
    jobs[1].cancel()
    thread = scheduler.start()._thread
    assert thread is not None
    thread.join(60)
    assert [finished(events_of(job, 0)).reason for job in jobs] == ["cancelled", "error", "error"]
    assert not scheduler.alive
    with pytest.raises(ShuttingDown):
        scheduler.submit(ask())


def test_a_device_that_breaks_ends_the_scheduler(model, monkeypatch: pytest.MonkeyPatch, caplog):
    quiet(caplog)

    def broken(self, *how):
        raise torch.AcceleratorError("an illegal memory access was encountered")

    monkeypatch.setattr(Engine, "_pass", broken)
    scheduler = Scheduler(model, max_rows=2)
    jobs = [scheduler.submit(ask(seed=seed)) for seed in range(4)]
    thread = scheduler.start()._thread
    assert thread is not None
    thread.join(60)
    assert {finished(events_of(job, 0)).reason for job in jobs} == {"error"}
    assert not scheduler.alive


def test_what_cannot_be_finished_in_time_is_told(model):
    clock = Clock()
    scheduler = Scheduler(model, max_rows=1, clock=clock)
    running, waiting = scheduler.submit(ask(40)), scheduler.submit(ask())
    scheduler.tick()
    scheduler.shutdown(0)
    assert {finished(events_of(job, 0)).reason for job in (running, waiting)} == {"shutdown"}
    assert scheduler.stats().finished == {"shutdown": 2}


def test_memory_that_runs_out_again_while_making_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smaller batch may not fit either: it is halved until it does, and nobody is forgotten."""
    model = tiny("bd3lm")
    scheduler = Scheduler(model, max_rows=8)
    failures = iter([True, True, False])
    original = Slots.reserve

    def reserve(*given: object) -> None:
        if next(failures, False):
            raise torch.OutOfMemoryError("no room")
        original(*given)  # type: ignore[arg-type]

    job = scheduler.submit(Request(ids=(1, 2), settings=DecodeSettings(max_new_tokens=4), seed=0))
    scheduler.tick()
    with monkeypatch.context() as patched:
        patched.setattr(Slots, "reserve", reserve)
        patched.setattr(scheduler_module, "empty_cache", lambda: None)
        patched.setattr(scheduler, "_on_gpu", True)
        patched.setattr(Engine, "_pass", _no_room)
        scheduler.tick()
    assert scheduler.max_rows == 1 and scheduler.stats().queue == 1
    for _ in range(20):
        scheduler.tick()
    assert list(job)[-1].reason in ("length", "stop")


def _no_room(*_: object) -> None:
    raise torch.OutOfMemoryError("no room")

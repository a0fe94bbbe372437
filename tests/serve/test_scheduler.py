"""Who waits, joins and leaves, and what clients get; ticks are driven by hand where order matters."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from tests.decode.tiny import prompt_of, silence_eot, tiny
from tests.serve.company import alone, drain, events_of, finished, requests, text_of, tokens_of, truth_of

from dadlm import ConfigError, DecodeSettings, Model, StepEvent, generate, stream
from dadlm.decode.engine import Engine
from dadlm.decode.slots import Slots
from dadlm.serve import Committed, Finished, Job, QueueFull, Request, Scheduler, ShuttingDown
from dadlm.serve import task as task_module
from dadlm.tokens.vocabularies import train_bpe

BYTES = train_bpe(["ab ab"], 258, show_progress=False)


@pytest.fixture(scope="module")
def model() -> Model:
    return silence_eot(tiny("dadlm"))


@pytest.fixture(scope="module")
def speaking() -> Model:
    """Writes random bytes: all kinds of half characters."""
    return tiny("dadlm", vocab=BYTES.vocab_size + 1, tokenizer=BYTES)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "dadlm.serve")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def ask(tokens: int = 12, seed: int = 0, prompt: int = 5, **changes) -> Request:
    settings = DecodeSettings(max_new_tokens=tokens)
    return Request(ids=tuple(prompt_of(prompt)), **({"settings": settings, "seed": seed} | changes))


def served(model: Model, *asked: Request, **limits: int) -> list[Job]:
    """Decoded side by side, to their end."""
    scheduler = Scheduler(model, **limits)
    jobs = [scheduler.submit(request) for request in asked]
    drain(scheduler)
    return jobs


def ticks(scheduler: Scheduler, count: int) -> None:
    for _ in range(count):
        scheduler.tick()


# --- places


def test_first_come_first_served_and_short_requests_overtake_long_ones(model):
    scheduler = Scheduler(model, max_rows=2)
    ended = []
    jobs = [scheduler.submit(ask(tokens)) for tokens in (40, 3, 3, 3)]
    while len(ended) < 4:
        scheduler.tick()
        new = [[type(event) for event in iter(job.take, None)] for job in jobs]
        ended += [i for i, types in enumerate(new) if Finished in types]
    assert ended == [1, 2, 3, 0]


def test_a_cancelled_request_frees_its_row_within_two_ticks_or_never_runs(model):
    scheduler = Scheduler(model, max_rows=1)
    first, second, waiting = (scheduler.submit(ask(tokens, seed=tokens)) for tokens in (40, 3, 5))
    ticks(scheduler, 3)
    assert (scheduler.stats().rows, scheduler.stats().queue) == (1, 2)
    first.cancel()
    waiting.cancel()
    scheduler.tick()
    assert scheduler.stats().queue == 0  # the second has the row
    assert finished(events_of(first, 0)).reason == "cancelled"
    end = finished(events_of(waiting, 0))
    assert (end.reason, end.forward_passes, end.completion_tokens) == ("cancelled", 0, 0)
    drain(scheduler)
    assert truth_of(second) == alone(model, second.request)


@pytest.mark.parametrize(("seconds", "retry"), [(0.5, 1.0), (12, 12.0), (500, 120.0)])
def test_a_full_queue_says_when_to_come_back(model, seconds: float, retry: float):
    clock = Clock()
    scheduler = Scheduler(model, max_rows=1, max_queue=1, clock=clock)
    for turn in range(4):
        scheduler.submit(ask(8))
        with pytest.raises(QueueFull, match="1 requests are waiting") as full:
            scheduler.submit(ask())
        assert full.value.retry_after == (retry if turn else 1.0)  # nothing is measured at first
        scheduler.tick()
        clock.now += seconds
        drain(scheduler)
        clock.now += 1000  # an idle time says nothing
    assert (scheduler.stats().submitted, scheduler.stats().refused) == (4, 4)


def test_deadlines_end_those_who_wait_and_those_who_run(model):
    clock = Clock()
    scheduler = Scheduler(model, max_rows=1, clock=clock)
    running, waiting = scheduler.submit(ask(40, deadline=5.0)), scheduler.submit(ask(deadline=2.0))
    ticks(scheduler, 8)
    clock.now = 2.5
    scheduler.tick()
    assert finished(events_of(waiting, 0)).reason == "deadline"
    clock.now = 5.0
    scheduler.tick()
    events = events_of(running, 0)
    end, tokens = finished(events), tokens_of(events)
    assert (end.reason, end.seconds_queued, end.seconds_running) == ("deadline", 0.0, 5.0)
    assert tokens and tokens == alone(model, running.request)[0][: len(tokens)]


def test_what_the_model_cannot_do_is_refused_at_once(model):
    scheduler = Scheduler(model)
    for request, message in [
        (ask(60), "context"),
        (Request(ids=(29,), settings=DecodeSettings(), seed=0), "ids"),
        (ask(seed=2**63), "64 bits"),
        (ask(settings=DecodeSettings(sampler="random", steps=9)), "steps"),
        (ask(gaps=((0, 1),), settings=DecodeSettings()), "gap"),
        (ask(stop=("a",)), "tokenizer"),
    ]:
        with pytest.raises(ConfigError, match=message):
            scheduler.submit(request)
    assert scheduler.stats().queue == 0
    with pytest.raises(ConfigError, match="max_rows"):
        Scheduler(model, max_rows=0)


# --- what clients get


def test_text_comes_in_whole_characters_and_is_the_text_alone(speaking):
    for seed, job in enumerate(served(speaking, *(ask(30, seed) for seed in range(6)), max_rows=4)):
        out = generate(speaking, [job.request.ids], seed=seed, max_new_tokens=30)
        events = events_of(job)
        assert text_of(events) == out.texts[0]
        assert sum(isinstance(event, Committed) for event in events) > 2


@pytest.mark.parametrize("family", ("ar", "dadlm"))
def test_stop_texts_end_the_text_wherever_they_lie(family: str):
    model = silence_eot(tiny(family, vocab=BYTES.vocab_size + 1, tokenizer=BYTES))
    texts = [BYTES.decode([id_]) for id_ in range(BYTES.vocab_size)]
    is_letter = torch.tensor([text.isalpha() and text.isascii() for text in texts])
    model.head.linear.bias.data[: BYTES.vocab_size] -= 1e4 * ~is_letter
    whole = generate(model, [prompt_of(5)], seed=3, max_new_tokens=30).texts[0]
    # Blocks begin at characters 3 and 7.
    for job in served(model, *(ask(30, 3, stop=("never", whole[at : at + 3])) for at in range(1, 9))):
        events = events_of(job)
        assert text_of(events) == whole[: whole.find(job.request.stop[1])]
        end = finished(events)
        assert (end.reason, end.completion_tokens < 30) == ("stop", True)
        blocks = sum(bool(event.tokens) for event in events if isinstance(event, Committed))
        assert end.cache_passes == (0 if family == "ar" else blocks - 1)  # nobody reads the last


def test_the_reason_is_stop_at_end_of_text_and_length_without(model):
    reasons = Counter()
    for one in (model, tiny("dadlm")):
        for events in map(events_of, served(one, *(ask(30, seed) for seed in range(8)))):
            assert finished(events).reason == ("stop" if tokens_of(events)[-1] == 28 else "length")
            reasons[finished(events).reason] += 1
    assert reasons["stop"] and reasons["length"] >= 8


@pytest.mark.parametrize("family", ("ar", "mdlm", "bd3lm", "dadlm"))
def test_a_trace_is_what_stream_gives_and_only_who_asks_gets_one(family: str):
    model = silence_eot(tiny(family))
    plain, traced = served(model, ask(20, prompt=9), ask(10, 4, trace=True))
    events = [event for event in events_of(traced) if isinstance(event, StepEvent)]
    expected = list(stream(model, traced.request.ids, seed=4, max_new_tokens=10))
    assert len(events) == len(expected)
    for event, other in zip(events, expected, strict=True):
        for name in ("block", "step", "ids", "anchor", "path", "fixed", "infilled"):
            assert getattr(event, name) == getattr(other, name)
        assert torch.allclose(torch.tensor(event.transition), torch.tensor(other.transition), atol=1e-5)
        shown, wanted = (
            [[[token[0] for token in node] for node in group] for group in one.top_tokens]
            for one in (event, other)
        )
        assert shown == wanted
    assert not any(isinstance(event, StepEvent) for event in events_of(plain))


def test_logprobs_are_those_of_the_node_at_the_step_that_fixed_the_token(model):
    settings = DecodeSettings(max_new_tokens=9, sampler="random", steps=2, temperature=0.5)
    job, _ = served(model, ask(settings=settings, seed=4, logprobs=2), ask(20, prompt=9))
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


# --- when things go wrong


def fail_where(monkeypatch: pytest.MonkeyPatch, error: Exception, is_bad: Callable[[list], bool]) -> None:
    """Forward passes of such rows fail."""
    run = Engine._pass

    def fail(self, model, rows, *how):
        if is_bad(self.slots.rows[rows]):
            raise error
        return run(self, model, rows, *how)

    monkeypatch.setattr(Engine, "_pass", fail)


def test_a_poisoned_request_dies_alone(model, monkeypatch: pytest.MonkeyPatch):
    error = RuntimeError("secret internals")
    fail_where(monkeypatch, error, lambda rows: any(row.seed == 13 for row in rows))
    jobs = served(model, *(ask(10, seed, prompt=seed % 7) for seed in range(10, 16)), max_rows=3)
    end = finished(events_of(jobs.pop(3)))
    assert end.reason == "error" and "secret" not in str(end.message)
    assert [truth_of(job) for job in jobs] == [alone(model, job.request) for job in jobs]


@pytest.mark.parametrize("broken", ["trace", "text", "admission"])
def test_what_fails_for_one_request_ends_that_one_alone(speaking, monkeypatch, broken: str):
    scheduler = Scheduler(speaking)
    bad, good = scheduler.submit(ask(30, trace=broken == "trace")), scheduler.submit(ask(30, seed=1))
    task, add = scheduler._waiting[0], Engine.add
    if broken == "trace":
        monkeypatch.setattr("dadlm.serve.task.event_of", lambda *_: 1 / 0)
    elif broken == "text":
        monkeypatch.setattr(task.text, "_decoded", lambda _: 1 / 0)
    else:
        monkeypatch.setattr(Engine, "add", lambda self, row: 1 / 0 if row is task.row else add(self, row))
    drain(scheduler)
    assert finished(events_of(bad)).reason == "error"
    assert truth_of(good) == alone(speaking, good.request)


def test_out_of_memory_halves_the_rows_and_no_text_changes(model, monkeypatch: pytest.MonkeyPatch):
    scheduler = Scheduler(model, max_rows=8)
    jobs = [scheduler.submit(request) for request in requests(8)]
    ticks(scheduler, 5)
    fail_where(monkeypatch, torch.OutOfMemoryError("full"), lambda rows: len(rows) > 2)
    drain(scheduler)
    assert scheduler.max_rows == 2 and scheduler.stats().out_of_memory == 2
    assert [truth_of(job) for job in jobs] == [alone(model, job.request) for job in jobs]
    fail_where(monkeypatch, torch.OutOfMemoryError("full"), lambda _: True)
    jobs = [scheduler.submit(ask(seed=seed)) for seed in range(3)]
    drain(scheduler)
    messages = {finished(events_of(job)).message for job in jobs}
    assert messages == {"out of memory, even alone; ask for fewer tokens"}


def test_memory_that_runs_out_after_a_step_loses_no_text(monkeypatch: pytest.MonkeyPatch):
    """The step's tokens are committed by then, and would not come again: only who asked to see more ends."""
    model = tiny("ar")
    scheduler = Scheduler(model, max_rows=8)
    bad, good = scheduler.submit(ask(logprobs=2)), scheduler.submit(ask(seed=1))
    ticks(scheduler, 3)
    row_of, failed = task_module._row_of, []

    def full_once(*given, **named):
        if not failed:
            failed.append(given)
            raise torch.OutOfMemoryError("full")
        return row_of(*given, **named)

    monkeypatch.setattr(task_module, "_row_of", full_once)
    drain(scheduler)
    assert truth_of(good) == alone(model, good.request)
    assert finished(events_of(bad)).reason == "error"


def test_memory_that_runs_out_again_while_rows_are_halved(model, monkeypatch: pytest.MonkeyPatch):
    """The smaller cache may not fit either: it is halved until it does, and no request is lost."""
    scheduler = Scheduler(model, max_rows=8)
    fails, reserve = iter([True, True, False]), Slots.reserve

    def sometimes_full(*given) -> None:
        if next(fails, False):
            raise torch.OutOfMemoryError("full")
        reserve(*given)

    job = scheduler.submit(ask(4))
    scheduler.tick()
    with monkeypatch.context() as patched:
        patched.setattr(Slots, "reserve", sometimes_full)
        patched.setattr("dadlm.decode.engines.empty_cache", lambda: None)
        patched.setattr(scheduler._engine, "device", torch.device("cuda"))
        fail_where(patched, torch.OutOfMemoryError("full"), lambda _: True)
        scheduler.tick()
    assert scheduler.max_rows == 1 and scheduler.stats().queue == 1
    drain(scheduler)
    assert truth_of(job) == alone(model, job.request)


def test_steps_that_nobody_reads_end_their_request(model, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dadlm.serve.task._UNREAD_STEPS", 3)
    bad, good = served(model, ask(40, trace=True), ask(40, seed=1))
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
    assert stats.tokens_per_second > 0
    assert stats.row_passes == sum(passes for _, passes, _ in answers.values()) == stats.batch_rows.sum
    assert stats.cache_passes == sum(writes for *_, writes in answers.values())
    assert stats.submitted == sum(stats.finished.values()) == sum(stats.total_seconds.counts) == len(answers)


def test_shutdown_finishes_what_was_accepted_and_takes_nothing_new(model):
    scheduler = Scheduler(model, max_rows=2).start()
    jobs = [scheduler.submit(request) for request in requests(6)]
    scheduler.shutdown(60)
    assert [truth_of(job) for job in jobs] == [alone(model, request) for request in requests(6)]
    with pytest.raises(ShuttingDown):
        scheduler.submit(ask())


def test_what_cannot_be_finished_in_time_ends_with_shutdown(model):
    scheduler = Scheduler(model, max_rows=1, clock=Clock())
    running, waiting = scheduler.submit(ask(40)), scheduler.submit(ask())
    scheduler.tick()
    scheduler.shutdown(0)
    assert {finished(events_of(job, 0)).reason for job in (running, waiting)} == {"shutdown"}
    assert scheduler.stats().finished == {"shutdown": 2}


@pytest.mark.parametrize("function", ["_pass", "remove"])
def test_a_device_that_breaks_ends_the_scheduler_and_all_requests(model, monkeypatch, function: str):
    def broken(self, *how):
        raise torch.AcceleratorError("an illegal memory access was encountered")

    scheduler = Scheduler(model, max_rows=1)
    jobs = [scheduler.submit(ask(40, seed)) for seed in range(3)]
    jobs[0].cancel()
    scheduler.tick()  # it was still waiting: there is no row to give back
    monkeypatch.setattr(Engine, function, broken)
    jobs[1].cancel()
    thread = scheduler.start()._thread
    assert thread is not None
    thread.join(60)
    ends = [finished(events_of(job, 0)).reason for job in jobs]
    assert ends == ["cancelled", "cancelled" if function == "_pass" else "error", "error"]
    assert not scheduler.alive
    with pytest.raises(ShuttingDown):
        scheduler.submit(ask())


@pytest.mark.usefixtures("quiet")
def test_an_error_that_nobody_expected_ends_the_rows_in_work_and_nothing_else(model, monkeypatch):
    scheduler = Scheduler(model, max_rows=2)
    bad = [scheduler.submit(ask(40, seed)) for seed in range(2)]
    scheduler.tick()
    with monkeypatch.context() as patched:
        patched.setattr(scheduler, "_hand_out", lambda _: 1 / 0)
        scheduler.tick()
    assert {finished(events_of(job, 0)).reason for job in bad} == {"error"}
    good = scheduler.submit(ask(seed=5))
    drain(scheduler)
    assert truth_of(good) == alone(model, good.request)


# --- in turn


@pytest.mark.parametrize("family", ("ar", "mdlm", "bd3lm", "dadlm"))
def test_a_request_for_many_texts_does_not_keep_others_waiting(family: str):
    """It gives rows back, and no text changes for it."""
    model, clock = silence_eot(tiny(family)), Clock()
    scheduler = Scheduler(model, max_rows=4, clock=clock)
    many = [scheduler.submit(ask(30, seed, batch="many")) for seed in range(8)]
    ticks(scheduler, 3)
    short = [scheduler.submit(ask(4, 50 + seed)) for seed in range(2)]
    passed = 0
    while not all(finished_now(job) for job in short):
        scheduler.tick()
        clock.now += 1
        passed += 1
    assert passed <= 10 and not any(finished_now(job) for job in many)
    assert all(finished(events_of(job)).seconds_queued == 0 for job in short)
    drain(scheduler)
    assert [truth_of(job) for job in many] == [alone(model, job.request) for job in many]


def finished_now(job: Job) -> bool:
    """Whether the last event is there; leaves all events where they are."""
    events = list(iter(job.take, None))
    for event in events:
        job.put(event)
    return bool(events) and isinstance(events[-1], Finished)


def test_rows_are_shared_equally_and_stay_where_they_are(model):
    scheduler = Scheduler(model, max_rows=4)
    jobs = {name: [scheduler.submit(ask(50, batch=name)) for _ in range(6)] for name in ("a", "b")}
    ticks(scheduler, 12)
    for _ in range(20):  # shares are equal now: nobody is interrupted any more
        held = Counter(task.batch for task in scheduler._tasks.values())
        assert held == {"a": 2, "b": 2}
        rows = list(scheduler._tasks)
        scheduler.tick()
        assert list(scheduler._tasks) == rows
    for job in jobs["b"]:
        job.cancel()
    ticks(scheduler, 2)
    assert scheduler.stats().rows == 4, "what nobody else wants is given to the one that is left"
    scheduler.shutdown(0)


def test_a_trace_of_an_interrupted_text_repeats_no_step(model):
    scheduler = Scheduler(model, max_rows=2)
    traced = [scheduler.submit(ask(24, seed, batch="many", trace=True)) for seed in range(2)]
    ticks(scheduler, 5)
    others = [scheduler.submit(ask(8, seed)) for seed in range(2)]
    drain(scheduler)
    assert all(finished(events_of(job)).reason == "length" for job in others)
    for seed, job in enumerate(traced):
        steps = [(e.block, e.step, e.ids) for e in events_of(job) if isinstance(e, StepEvent)]
        expected = stream(model, job.request.ids, seed=seed, max_new_tokens=24)
        assert steps == [(e.block, e.step, e.ids) for e in expected]


# --- traces


def test_steps_are_made_outside_the_scheduler_in_order(model, monkeypatch: pytest.MonkeyPatch):
    """While the first event is being made the text goes on; its client gets all in order."""
    made, go_on = [], threading.Event()
    event_of = task_module.event_of

    def slow(*given):
        assert go_on.wait(60)
        made.append(threading.current_thread().name)
        return event_of(*given)

    monkeypatch.setattr(task_module, "event_of", slow)
    scheduler = Scheduler(model)
    job = scheduler.submit(ask(12, trace=True))
    drain(scheduler)
    assert job.unread == 0
    go_on.set()
    events = events_of(job)
    steps = [event for event in events if isinstance(event, StepEvent)]
    assert len(steps) == len(made) == finished(events).forward_passes
    assert all(name.startswith("dadlm-trace") for name in made)
    fixed = 0
    for event in events:  # a block comes after all of its steps
        fixed += sum(event.fixed) if isinstance(event, StepEvent) else 0
        fixed -= len(event.tokens) if isinstance(event, Committed) else 0
        assert fixed >= 0


def test_events_that_wait_to_be_made_are_bounded(model, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dadlm.serve.tracer._MOST", 2)
    go_on, event_of = threading.Event(), task_module.event_of
    monkeypatch.setattr(task_module, "event_of", lambda *given: go_on.wait(60) and event_of(*given))
    scheduler = Scheduler(model).start()
    job = scheduler.submit(ask(40, trace=True))
    deadline = time.monotonic() + 5
    while scheduler.stats().forward_passes < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)
    assert scheduler.stats().forward_passes == 3, "two wait, and the scheduler with the third"
    go_on.set()
    assert finished(events_of(job)).reason == "length"
    scheduler.shutdown(10)

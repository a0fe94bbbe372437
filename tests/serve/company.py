"""What the tests of the scheduler share: requests of every kind, and each alone as the truth."""

from tests.decode.test_generate import SETTINGS
from tests.decode.tiny import prompt_of

from dadlm import DecodeSettings, Model, generate
from dadlm.decode import fill_gaps
from dadlm.decode.request import Request as EngineRequest
from dadlm.serve import Committed, Event, Finished, Job, Request, Scheduler

WAYS = [
    *SETTINGS.values(),
    {"nucleus": "bd3lm", "top_p": 0.6},
    {"temperature": 1.7, "top_p": 1.0},
    {"top_k": 3},
]
LENGTHS = (5, 0, 8, 3, 14, 1, 2, 9, 30, 17, 41, 4)


def requests(count: int = len(WAYS), **changes) -> list[Request]:
    """Every way to decode, prompts of every remainder, different lengths."""
    return [
        Request(
            ids=tuple(prompt_of(LENGTHS[i % len(LENGTHS)], i)),
            settings=DecodeSettings(max_new_tokens=5 + i % 16, **WAYS[i % len(WAYS)]),
            seed=7 * i,
            **changes,
        )
        for i in range(count)
    ]


def gap_requests() -> list[Request]:
    gaps = ((3, 2), (5, 4), (20, 3), (28, 2))
    return [
        Request(ids=tuple(prompt_of(30, i)), gaps=gaps[i % 2 :], settings=DecodeSettings(**how), seed=i)
        for i, how in enumerate(WAYS)
    ]


Truth = tuple[list[int], int, int]


def alone(model: Model, request: EngineRequest) -> Truth:
    """Tokens, forward passes and cache passes of the request without a scheduler."""
    if request.gaps:
        filled = fill_gaps(model, request.ids, request.gaps, seed=request.seed, settings=request.settings)
        return [id_ for gap in filled.gaps for id_ in gap], filled.forward_passes, filled.cache_passes
    out = generate(model, [request.ids], seed=request.seed, settings=request.settings)
    return out.tokens[0], out.forward_passes[0], out.cache_passes[0]


def drain(scheduler: Scheduler, most: int = 2000) -> int:
    """Tick until nobody is left; how many ticks it took."""
    for tick in range(most):
        stats = scheduler.stats()
        if not stats.rows + stats.queue:
            return tick
        scheduler.tick()
    raise AssertionError(f"still at work after {most} ticks")


def finished(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def events_of(job: Job, seconds: float = 60) -> list[Event]:
    """All events of a job, each of which comes within so many seconds."""
    events = []
    while not events or not isinstance(events[-1], Finished):
        event = job.take(seconds)
        assert event is not None, "the request does not end"
        events.append(event)
    return events


def truth_of(job: Job) -> Truth:
    events = events_of(job)
    tokens, end = tokens_of(events), finished(events)
    assert end.reason in ("stop", "length"), end
    assert end.completion_tokens == len(tokens)
    return tokens, end.forward_passes, end.cache_passes


def tokens_of(events: list[Event]) -> list[int]:
    return [token for event in events if isinstance(event, Committed) for token in event.tokens]


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Committed))

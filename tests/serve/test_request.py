"""A job's events, for threads and event loops."""

import asyncio
import threading

import pytest

from dadlm import ConfigError, DecodeSettings
from dadlm.serve import Committed, Event, Finished, Job, Request, respond

END = Finished("length", None, 1, 2, 2, 1, 0, 0.0, 0.1, 0.1)
SENT: list[Event] = [Committed([1], "a", None, 1), Committed([2], "b", None, 2), END]


def request(**changes) -> Request:
    return Request(**({"ids": (1, 2), "settings": DecodeSettings(), "seed": 0} | changes))


def test_a_thread_and_an_event_loop_get_all_events_in_order():
    async def read(jobs: list[Job]) -> list:
        return [item async for item in respond._events(jobs)]

    jobs = [Job(request()) for _ in range(3)]
    put = [job.put for job in jobs for _ in SENT]
    thread = threading.Timer(0.02, lambda: [one(event) for one, event in zip(put, 3 * SENT, strict=True)])
    thread.start()
    assert list(jobs[0]) == SENT and jobs[0].take() is None
    got = asyncio.run(asyncio.wait_for(read(jobs[1:]), 60))
    assert [[event for i, event in got if i == index] for index in range(2)] == [SENT, SENT]
    jobs[1].put(END)  # for a loop that is closed
    assert list(jobs[1]) == [END]
    thread.join(60)


@pytest.mark.parametrize(
    "changes",
    [
        {"stop": ("a", "b", "c", "d", "e")},
        {"stop": ("",)},
        {"stop": ("a",), "gaps": ((1, 1),)},
        {"logprobs": 6},
        {"logprobs": -1},
        {"deadline": 0.0},
        {"deadline": float("nan")},
    ],
    ids=str,
)
def test_a_request_that_makes_no_sense_is_refused(changes: dict):
    with pytest.raises(ConfigError, match=next(iter(changes))):
        request(**changes)

"""The batch on CUDA: captured passes give each request its own text, and many rows pay off."""

import time

import pytest
import torch
from tests.decode.tiny import FAMILIES, silence_eot, tiny
from tests.serve.company import alone, drain, gap_requests, requests, truth_of

from dadlm import DecodeSettings, load
from dadlm.serve import Request, Scheduler

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


@pytest.mark.filterwarnings("error:decoding without CUDA graphs")
@pytest.mark.parametrize("family", FAMILIES)
def test_each_request_gets_its_own_text(family: str):
    """Three times over: the second time a pass is captured, the third time it is replayed."""
    model = silence_eot(tiny(family, width=64)).cuda()
    asked = 3 * (requests() + ([] if family == "ar" else gap_requests()))
    scheduler = Scheduler(model, max_rows=8)
    jobs = []
    for request in asked:
        jobs.append(scheduler.submit(request))
        scheduler.tick()
    drain(scheduler)
    assert [truth_of(job) for job in jobs] == [alone(model, request) for request in asked]
    graphed = scheduler._engine.graphs.callables.values()
    assert any(one.captured is not None for one in graphed)


@pytest.mark.parametrize("family", ("ar", "dadlm"))
def test_sixty_four_rows_are_eight_times_as_fast_as_one(family: str, capsys: pytest.CaptureFixture[str]):
    """The models that ship. One row of the same scheduler is one text at a time without capturing anew."""
    model = silence_eot(load(family)).cuda()
    how = DecodeSettings(max_new_tokens=64)
    asked = [Request(ids=tuple(range(100, 132)), settings=how, seed=i) for i in range(64)]

    def tokens_per_second(rows: int, some: list[Request]) -> float:
        scheduler = Scheduler(model, max_rows=rows)
        seconds = 0.0
        for _ in ("to capture", "to measure"):
            jobs = [scheduler.submit(request) for request in some]
            begin = time.perf_counter()
            drain(scheduler)
            seconds = time.perf_counter() - begin
            assert all(len(truth_of(job)[0]) == 64 for job in jobs)
        return 64 * len(some) / seconds

    one, many = tokens_per_second(1, asked[:2]), tokens_per_second(64, asked)
    with capsys.disabled():
        print(f"\n{family}: {one:.0f} tokens/s with one row, {many:.0f} with 64: {many / one:.1f} times")
    assert many >= 8 * one

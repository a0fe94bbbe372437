"""The batch on CUDA: captured passes give each request its own text, and many rows pay off."""

import time

import pytest
import torch
from tests.decode.tiny import FAMILIES, silence_eot, tiny
from tests.serve.company import alone, drain, gap_requests, requests, truth_of

from dadlm import DecodeSettings, Model
from dadlm.recipes import recipe
from dadlm.serve import Request, Scheduler

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]


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
    assert any(act.graph is not None for act in scheduler._batch._acts.values())


@pytest.mark.parametrize("family", ("ar", "bd3lm", "dadlm"))
def test_sixty_four_rows_are_eight_times_as_fast_as_one(family: str):
    torch.manual_seed(0)
    model = Model(recipe(f"lab-{family}").model).cuda().eval()
    how = DecodeSettings(max_new_tokens=256)
    asked = [Request(ids=tuple(range(100 + i)), settings=how, seed=i) for i in range(64)]

    def tokens_per_second(max_rows: int, some: list[Request]) -> float:
        scheduler = Scheduler(model, max_rows=max_rows)
        for _ in ("to capture", "to measure"):
            jobs = [scheduler.submit(request) for request in some]
            torch.cuda.synchronize()
            begin = time.perf_counter()
            drain(scheduler, 100_000)
            seconds = time.perf_counter() - begin
        return sum(len(truth_of(job)[0]) for job in jobs) / seconds

    one, many = tokens_per_second(1, asked[:4]), tokens_per_second(64, asked)
    begin = time.perf_counter()
    solo = sum(len(alone(model, request)[0]) for request in asked[:4]) / (time.perf_counter() - begin)
    print(f"{family}: {solo:.0f} tokens/s by generate, {one:.0f} with one row, {many:.0f} with 64")
    assert many >= 8 * max(one, solo)

"""Whatever its company, a request's text is the one it would get alone."""

from dataclasses import replace
from functools import cache
from random import Random
from time import perf_counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decode.tiny import FAMILIES, silence_eot, tiny
from tests.serve.company import alone, drain, gap_requests, requests, truth_of
from torch.utils._python_dispatch import TorchDispatchMode

from dadlm import DecodeSettings, Model, load
from dadlm.decode import slots, state, step
from dadlm.decode.batched_settings import BatchedSettings
from dadlm.decode.cache import Cache, bytes_per_slot, slots_that_fit
from dadlm.decode.engine import Engine
from dadlm.decode.request import Row
from dadlm.decode.sample import draw_each, draw_tokens
from dadlm.decode.step import composite
from dadlm.serve import Request, Scheduler

SHAPES = {
    **{family: {"family": family} for family in FAMILIES},
    "late expansion": {"family": "dadlm", "expand_at": 1},
    "candidate offsets": {"family": "dadlm", "candidate_offset": 0.5},
    "published network": {"family": "bd3lm", "architecture": "bd3lm", "tie_embedding": False},
}
every_model = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def model_of(shape: dict) -> Model:
    return silence_eot(tiny(**shape))


def run_all(model: Model, asked: list[Request], max_rows: int) -> list:
    scheduler = Scheduler(model, max_rows=max_rows)
    jobs = []
    for request in asked:  # each joins a step later than the one before
        jobs.append(scheduler.submit(request))
        scheduler.tick()
    drain(scheduler)
    return [truth_of(job) for job in jobs]


@every_model
def test_mixed_settings_in_one_batch_give_each_its_own_text(shape: dict):
    model = model_of(shape)
    assert run_all(model, requests(), 5) == [alone(model, request) for request in requests()]


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_that_end_themselves(family: str):
    model = tiny(family)  # end-of-text is as probable as any token
    assert run_all(model, requests(24), 8) == [alone(model, request) for request in requests(24)]


@pytest.mark.parametrize("family", ("mdlm", "bd3lm", "dadlm"))
def test_gaps_beside_completions(family: str):
    model = tiny(family)
    asked = [one for pair in zip(gap_requests(), requests(), strict=True) for one in pair]
    assert run_all(model, asked, 6) == [alone(model, request) for request in asked]


@pytest.mark.parametrize("paths", [("viterbi",), ("lookahead",), ("viterbi", "lookahead")])
@pytest.mark.parametrize("family", ("mdlm", "bd3lm", "dadlm"))
def test_where_nobody_draws_nothing_is_drawn(
    family: str, paths: tuple[str, ...], as_on_cuda: None, monkeypatch: pytest.MonkeyPatch
):
    model = tiny(family)
    asked = [
        replace(
            one, settings=replace(one.settings, sampler="confidence", steps=None, path=paths[i % len(paths)])
        )
        for i, one in enumerate(requests(8))
    ]
    expected = [alone(model, request) for request in asked]
    monkeypatch.setattr(step, "draw_each", lambda *_, **__: pytest.fail("a token was drawn"))
    monkeypatch.setattr(step, "at_path", lambda *_: pytest.fail("a path was drawn"))
    assert run_all(model, asked, 4) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_the_fixed_shapes_of_cuda_give_the_same(family: str, as_on_cuda: None):
    model = model_of({"family": family})
    asked = requests() + ([] if family == "ar" else gap_requests()[:6])
    assert run_all(model, asked, 6) == [alone(model, request) for request in asked]


@pytest.mark.parametrize("family", ("ar", "dadlm"))
def test_long_prompts_are_read_in_parts(family: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slots, "_READ", 8)
    model = model_of({"family": family})
    asked = requests()
    scheduler = Scheduler(model, max_rows=4)
    truth, read, forward = [alone(model, request) for request in asked], [], model.read
    monkeypatch.setattr(
        model, "read", lambda ids, *rest, **how: read.append(ids.numel()) or forward(ids, *rest, **how)
    )
    jobs = [scheduler.submit(request) for request in asked]
    drain(scheduler)
    assert [truth_of(job) for job in jobs] == truth
    assert max(read) <= 16


MODELS = {family: tiny(family, layers=1) for family in FAMILIES}
ASKED = requests()[4:12]  # every sampler and path, and the nucleus of the position


@cache
def truths(family: str) -> dict:
    return {i: alone(MODELS[family], request) for i, request in enumerate(ASKED)}


@given(
    family=st.sampled_from(sorted(MODELS)),
    order=st.permutations(range(len(ASKED))),
    pauses=st.lists(st.integers(0, 4), min_size=len(ASKED), max_size=len(ASKED)),
    max_rows=st.integers(1, 8),
)
@settings(max_examples=6)
def test_any_order_of_arrival(family: str, order: list[int], pauses: list[int], max_rows: int):
    scheduler = Scheduler(MODELS[family], max_rows=max_rows)
    jobs = {}
    for index, pause in zip(order, pauses, strict=True):
        jobs[index] = scheduler.submit(ASKED[index])
        for _ in range(pause):
            scheduler.tick()
    drain(scheduler)
    assert {index: truth_of(job) for index, job in jobs.items()} == truths(family)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_may_come_and_go_between_any_two_steps(family: str, as_on_cuda: None):
    """Who leaves begins the block anew later; where the others lie then, and who lay there before, is all the
    same."""
    model, chance, truth, leave = MODELS[family], Random(family), truths(family), 12
    engine = Engine(model, lockstep=False)
    waiting = [Row(model, request) for request in ASKED]
    number, found = {row: i for i, row in enumerate(waiting)}, {}
    while waiting or engine.rows:
        for _ in range(chance.randrange(5)):
            if leave and engine.rows and chance.random() < 0.3:
                gone, leave = chance.choice(engine.rows), leave - 1
                engine.remove(gone)
                waiting.append(gone)
            elif waiting and len(engine.rows) < 5:
                engine.add(waiting.pop(chance.randrange(len(waiting))))
        for new in engine.step().committed if engine.rows else ():
            if new.row.finished:
                found[number[new.row]] = (new.row.tokens, new.row.forward_passes, new.row.cache_passes)
    assert not leave and found == truth


def test_one_forward_pass_serves_all_rows(monkeypatch: pytest.MonkeyPatch):
    model = model_of({"family": "dadlm"})
    rows = []
    denoise = model.denoise
    monkeypatch.setattr(
        model, "denoise", lambda ids, *rest, **how: rows.append(len(ids)) or denoise(ids, *rest, **how)
    )
    scheduler = Scheduler(model, max_rows=8)
    for request in requests(6):
        scheduler.submit(request)
    for _ in range(3):
        scheduler.tick()
    assert rows == [6, 6, 6]


class Outside(TorchDispatchMode):
    """Counts the operators that are launched outside what is captured: on CUDA each one costs, however
    small."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.count, self.inside = 0, False
        for owner, name in ((Engine, "_pass"), (state.State, "advance"), (slots.Slots, "_read")):
            monkeypatch.setattr(owner, name, self._not_counted(getattr(owner, name)))

    def _not_counted(self, function: Any) -> Any:
        def call(*arguments):
            self.inside = True
            result = function(*arguments)
            self.inside = False
            return result

        return call

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        self.count += not self.inside
        return operator(*arguments, **(options or {}))


@pytest.mark.parametrize("family", FAMILIES)
def test_more_rows_launch_nothing_more(family: str, monkeypatch: pytest.MonkeyPatch):
    """Rows that join, begin, finish and leave together cost as many operators as two of them."""
    model = model_of({"family": family})

    def operators(rows: int) -> int:
        scheduler = Scheduler(model, max_rows=rows)
        for seed in range(rows):
            how = DecodeSettings(max_new_tokens=11)  # to the end of a block: all end together
            scheduler.submit(Request(ids=(1, 2, 3, 4, 5), settings=how, seed=seed))
        with monkeypatch.context() as patched, Outside(patched) as outside:
            drain(scheduler)
        return outside.count

    assert operators(8) == operators(2) > 0


def test_settings_of_each_draw_are_those_of_one_draw_to_the_bit():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(200, 500, generator=generator)
    uniform = torch.rand(200, generator=generator)
    ways = [
        (t, p, rule)
        for t in (0.0, 0.3, 0.7, 1.0, 1.9)
        for p in (0.2, 0.9, 1.0)
        for rule in ("standard", "bd3lm")
    ]
    chosen = [ways[i % len(ways)] for i in range(len(logits))]
    single = torch.stack([draw_tokens(logits[i], uniform[i], *way) for i, way in enumerate(chosen)])
    settings = [DecodeSettings(temperature=t, top_p=p, nucleus=rule) for t, p, rule in chosen]
    each = draw_each(logits, uniform, BatchedSettings.of(settings), torch.arange(len(logits)), cold=True)
    assert torch.equal(each, single)


def test_a_weight_of_each_row_is_rounded_as_one_weight_is():
    generator = torch.Generator().manual_seed(0)
    emitted = torch.rand(50, 4, generator=generator)
    transition = torch.randn(50, 4, 3, 3, generator=generator).log_softmax(-1)
    path = torch.randint(0, 3, (50, 4), generator=generator)
    weights, ones = torch.linspace(0, 1, 50, dtype=torch.float64), torch.ones(50, 1, dtype=torch.float64)
    single = [
        (1 - float(w)) * emitted[i] + float(w) * composite(emitted, transition, path, ones)[i]
        for i, w in enumerate(weights)
    ]
    assert torch.equal(composite(emitted, transition, path, weights[:, None]), torch.stack(single))


def test_memory_is_known_beforehand():
    model = tiny("bd3lm")
    cache = Cache(model, 3, model.config.context)
    assert cache.k.nbytes + cache.v.nbytes == 3 * bytes_per_slot(model)
    assert slots_that_fit(model, 64) == 64
    with pytest.warns(UserWarning, match="6 rows at once instead of 64"):
        assert slots_that_fit(model, 64, free=10 * bytes_per_slot(model) + 1) == 6


@pytest.mark.acceptance
@pytest.mark.parametrize("family, least", [("dadlm", 1.3), ("ar", 2.0)])
def test_a_batch_is_faster_than_one_at_a_time(family: str, least: float):
    """On the models that ship; in turn, so that other work on the machine slows both alike."""
    model = silence_eot(load(family))
    how = DecodeSettings(max_new_tokens=32)
    asked = [Request(ids=tuple(range(100, 120 + i)), settings=how, seed=i) for i in range(32)]
    scheduler = Scheduler(model, max_rows=32)
    alone(model, asked[0])  # warm
    apart = together = 0.0
    for turn in range(3):
        some = asked[4 * turn : 4 * turn + 4]
        begin = perf_counter()
        truth = [alone(model, request) for request in some]
        apart += (perf_counter() - begin) / len(some)
        jobs = [scheduler.submit(request) for request in asked]
        begin = perf_counter()
        drain(scheduler)
        together += (perf_counter() - begin) / len(asked)
        assert [truth_of(job) for job in jobs][4 * turn : 4 * turn + 4] == truth
    print(
        f"{family}: {apart / 3:.3f} s a text alone, {together / 3:.3f} together: {apart / together:.2f} times"
    )
    assert apart >= least * together

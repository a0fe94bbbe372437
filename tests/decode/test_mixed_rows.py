"""Whatever is decoded beside it, a request's text is the one it would get alone."""

from dataclasses import replace
from functools import cache
from itertools import zip_longest
from random import Random
from time import perf_counter
from typing import Any

import pytest
import torch
from tests.decode.tiny import FAMILIES, silence_eot, tiny
from tests.serve.company import Truth, alone, gap_requests, requests
from torch.utils._python_dispatch import TorchDispatchMode

from dadlm import DecodeSettings, Model, load
from dadlm.decode import choose, slots, state
from dadlm.decode.batched_settings import BatchedSettings
from dadlm.decode.cache import Cache, bytes_per_slot, slots_that_fit
from dadlm.decode.engine import Engine
from dadlm.decode.request import Request, Row
from dadlm.decode.sample import draw_each, draw_tokens
from dadlm.decode.step import composite

SHAPES = {
    **{family: {"family": family} for family in FAMILIES},
    "late expansion": {"family": "dadlm", "expand_at": 1},
    "candidate offsets": {"family": "dadlm", "candidate_offset": 0.5},
    "published network": {"family": "bd3lm", "architecture": "bd3lm", "tie_embedding": False},
}
every_model = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


@pytest.fixture(params=["tight", "fixed"])
def shapes(request: pytest.FixtureRequest) -> str:
    """Those of the CPU, and the fixed ones of CUDA."""
    if request.param == "fixed":
        request.getfixturevalue("as_on_cuda")
    return request.param


def model_of(shape: dict) -> Model:
    return silence_eot(tiny(**shape))


def truth_of(row: Row) -> Truth:
    """Tokens, forward passes and cache passes, as `alone` gives them."""
    gaps = [id_ for first, length in row.gaps for id_ in row.ids[first : first + length]]
    return gaps or row.tokens, row.forward_passes, row.cache_passes


def run_all(model: Model, asked: list, max_rows: int, at_once: bool = False) -> list[Truth]:
    """Each joins a step later than the one before, or all `at_once`."""
    engine, rows = Engine(model, lockstep=False), [Row(model, request) for request in asked]
    waiting = list(rows)
    while waiting or engine.rows:
        while waiting and len(engine.rows) < max_rows:
            engine.add(waiting.pop(0))
            if not at_once:
                break
        engine.step()
    return [truth_of(row) for row in rows]


@every_model
def test_mixed_settings_in_one_batch_give_each_its_own_text(shape: dict):
    model = model_of(shape)
    assert run_all(model, requests(), 5) == [alone(model, request) for request in requests()]


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_that_end_themselves_beside_gaps(family: str, shapes: str):
    model = tiny(family)  # end-of-text is as probable as any token
    gaps = [] if family == "ar" else gap_requests()
    asked = [one for pair in zip_longest(gaps, requests(20)) for one in pair if one]
    assert run_all(model, asked, 7) == [alone(model, request) for request in asked]


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
    monkeypatch.setattr(choose, "draw_each", lambda *_, **__: pytest.fail("a token was drawn"))
    monkeypatch.setattr(choose, "at_path", lambda *_: pytest.fail("a path was drawn"))
    assert run_all(model, asked, 4) == expected


@pytest.mark.parametrize("family", ("ar", "dadlm"))
def test_long_prompts_are_read_in_parts(family: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slots, "_READ", 8)
    model = model_of({"family": family})
    truth, read, forward = [alone(model, request) for request in requests()], [], model.read
    monkeypatch.setattr(
        model, "read", lambda ids, *rest, **how: read.append(ids.numel()) or forward(ids, *rest, **how)
    )
    assert run_all(model, requests(), 4) == truth
    assert max(read) <= 16


MODELS = {family: tiny(family, layers=1) for family in FAMILIES}
ASKED = requests()[4:18]  # every sampler and path, and the nucleus of the position


@cache
def truths(family: str) -> dict[int, Truth]:
    return {i: alone(MODELS[family], request) for i, request in enumerate(ASKED)}


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_may_come_and_go_between_any_two_steps(family: str, shapes: str):
    """A row that leaves does its block again later, beside others and in another slot."""
    model, chance, truth, leave = MODELS[family], Random(family), truths(family), 12
    engine = Engine(model, lockstep=False)
    waiting = [Row(model, one) for one in ASKED]
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
                found[number[new.row]] = truth_of(new.row)
    assert not leave and found == truth


def test_one_forward_pass_serves_all_rows(monkeypatch: pytest.MonkeyPatch):
    model, rows = model_of({"family": "dadlm"}), []
    denoise = model.denoise
    monkeypatch.setattr(
        model, "denoise", lambda ids, *rest, **how: rows.append(len(ids)) or denoise(ids, *rest, **how)
    )
    run_all(model, requests(6), 8, at_once=True)
    assert rows[:3] == [6, 6, 6]


class Outside(TorchDispatchMode):
    """Counts the operators that are launched outside what is captured: on CUDA each one costs."""

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
        how = DecodeSettings(max_new_tokens=11)  # to the end of a block: all end together
        asked = [Request(ids=(1, 2, 3, 4, 5), settings=how, seed=seed) for seed in range(rows)]
        with monkeypatch.context() as patched, Outside(patched) as outside:
            run_all(model, asked, rows, at_once=True)
        return outside.count

    operators(2)  # some constants are computed once
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
    alone(model, asked[0])  # warm
    apart = together = 0.0
    for turn in range(3):
        some = slice(4 * turn, 4 * turn + 4)
        begin = perf_counter()
        truth = [alone(model, request) for request in asked[some]]
        middle = perf_counter()
        assert run_all(model, asked, 32, at_once=True)[some] == truth
        apart += (middle - begin) / 4
        together += (perf_counter() - middle) / len(asked)
    print(
        f"{family}: {apart / 3:.3f} s a text alone, {together / 3:.3f} together: {apart / together:.2f} times"
    )
    assert apart >= least * together

"""The engine as CUDA would run it, in place and at fixed shapes, against the plain way.

Capturing needs CUDA; what surrounds it does not. Here a graph is called instead of replayed.
"""

import copy
import gc
import threading
import time
import weakref
from contextlib import nullcontext
from functools import partial
from itertools import zip_longest
from typing import Any

import pytest
import torch
from tests.decode.tiny import FAMILIES, prompt_of, silence_eot, tiny

from dadlm.decode import DecodeSettings, Generated, generate, pass_plan, release_engine, stream
from dadlm.decode.engine import Engine
from dadlm.decode.engines import borrow_engine
from dadlm.decode.generate import completions, decode_steps
from dadlm.decode.request import Request
from dadlm.errors import ConfigError
from dadlm.model import Model
from dadlm.model import capture as capturing
from dadlm.model.capture import GraphedCallable, Graphs, capture

WAYS = [
    {},
    {"sampler": "random"},
    {"sampler": "random", "steps": 2, "infill": (2, 0.25)},
    {"infill": (1, 0.0)},
    {"sampler": "confidence", "path": "viterbi", "threshold": 0.5},
    {"sampler": "confidence", "temperature": 0.7},
    {"sampler": "confidence", "path": "lookahead", "padded": True},
    {"sampler": "random", "padded": True},
]
PROMPTS = [[1, 2, 3], [4] * 9, [5] * 12, [7], [8] * 5]


def run(model: Model, **how) -> Generated:
    if model.config.family == "ar":
        how.pop("steps", None)
    return generate(model, PROMPTS, max_new_tokens=21, seed=3, **how)


@pytest.fixture
def capacities(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Of each pass: its capacity, the tokens it kept, and all positions."""
    seen, run = [], Engine._pass

    def watched(self, model, rows, width, features, capacity):
        step = run(self, model, rows, width, features, capacity)
        seen.append((capacity, int(step.kept.sum()), step.ids.numel()))
        return step

    monkeypatch.setattr(Engine, "_pass", watched)
    return seen


def test_padded_ends_leave_room_for_what_comes_sooner(
    as_on_cuda: None, capacities: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end takes steps out of a row: a pass may keep more than was counted before the first one."""
    monkeypatch.setattr(pass_plan, "_FEW", 1)
    run(tiny("dadlm"), sampler="random", padded=True)
    assert capacities and all(capacity == positions for capacity, _, positions in capacities)


@pytest.mark.parametrize("how", WAYS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_in_place_and_at_fixed_shapes_the_texts_are_the_same(
    family: str, how: dict, request: pytest.FixtureRequest
) -> None:
    model = tiny(family)
    plain = run(model, **how)
    request.getfixturevalue("as_on_cuda")
    assert run(model, **how) == plain


def test_what_a_step_showed_does_not_change_afterwards(as_on_cuda: None) -> None:
    model = tiny("dadlm")
    settings = DecodeSettings(max_new_tokens=11)
    seen = []
    for result in decode_steps(model, completions(model, [[1]], settings, 0)):
        step = result.step
        assert step is not None
        seen.append((step.block.masked, step.block.masked.clone(), int(step.block.masked.sum())))
    assert all(torch.equal(now, then) for now, then, _ in seen)
    assert [count for _, _, count in seen] == [3, 2, 1, *[4, 3, 2, 1] * 2]


def test_finished_rows_leave_when_that_halves_the_batch(
    as_on_cuda: None, capacities: list[tuple[int, int, int]]
) -> None:
    model = silence_eot(tiny("bd3lm"))
    waiting = Engine(model)
    for row in range(5):  # each may write a block more than the one before
        settings = DecodeSettings(max_new_tokens=4 * (row + 1), sampler="random", steps=1)
        waiting.add(Request(ids=(1,) * 8, settings=settings, seed=0))
    while waiting.rows:
        waiting.step()
    assert [positions // 4 for _, _, positions in capacities] == [5, 5, 5, 2, 1]


class Graph:
    """In the place of CUDA's: captures what its class lets it."""

    fails: list[Exception]
    """Of the next captures, one each."""
    modes: set[str]

    def capture_begin(self, *pool: object, capture_error_mode: str) -> None:
        self.modes.add(capture_error_mode)
        self.own = pool[0] if pool else object()
        if self.fails:
            raise self.fails.pop(0)

    def capture_end(self) -> None: ...

    def replay(self) -> None: ...

    def pool(self) -> object:
        return self.own


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Captures without a device; returns a list that tells of memory given back."""
    told: list[str] = []
    Graph.fails, Graph.modes = [], set()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1, 1))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: told.append("given back"))
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    monkeypatch.setattr(capturing, "_stream", lambda _: None)
    return told


@pytest.mark.usefixtures("fake_cuda")
def test_a_capture_that_fails_is_told_once_and_decoding_goes_on() -> None:
    calls: list[int] = []
    act = partial(Graphs(True, torch.device("cpu")), ("key",), launches=2)
    act(lambda: calls.append(1))
    act(lambda: calls.append(1))
    Graph.fails = [RuntimeError("operation not permitted when stream is capturing\nand more")]
    with pytest.warns(UserWarning, match="without CUDA graphs.*not permitted") as told:
        act(lambda: calls.append(1))
    act(lambda: calls.append(1))
    assert len(calls) == 4 and len(told) == 1


def test_a_capture_that_finds_no_memory_is_made_again_with_what_is_cached(fake_cuda: list[str]) -> None:
    Graph.fails = [torch.OutOfMemoryError("full")]
    assert capture("decoding", lambda: 7) is not None and fake_cuda == ["given back"]
    Graph.fails = [torch.OutOfMemoryError("full"), torch.OutOfMemoryError("still full")]
    with pytest.raises(torch.OutOfMemoryError, match="still full"):
        capture("decoding", lambda: 7)


@pytest.mark.usefixtures("fake_cuda")
def test_threads_capture_one_after_another() -> None:
    """A server has a thread for each model."""
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.01)
        inside -= 1

    threads = [threading.Thread(target=capture, args=("decoding", work)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1 and Graph.modes == {"thread_local"}


@pytest.mark.usefixtures("fake_cuda")
def test_nobody_captures_before_a_failed_capture_is_cleared_away(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    other = threading.Thread(target=capture, args=("decoding", lambda: order.append("another thread")))

    def clear() -> None:
        other.start()
        time.sleep(0.05)
        order.append("cleared")

    monkeypatch.setattr(capturing, "_end_capture", clear)
    Graph.fails = [RuntimeError("not permitted")]
    with pytest.warns(UserWarning, match="without CUDA graphs"):
        capture("decoding", lambda: 7)
    other.join()
    assert order == ["cleared", "another thread"]


def test_out_of_memory_says_what_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Engine, "step", full)
    with pytest.raises(ConfigError, match=r"out of memory: 4 rows of 9 tokens .* batch_size 1"):
        generate(tiny("bd3lm"), [[1]] * 4, max_new_tokens=8, batch_size=4)


def test_capacity_is_what_each_pass_keeps_in_few_sizes(
    as_on_cuda: None, capacities: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = silence_eot(tiny("bd3lm", block=8))
    for infill in (None, (2, 0.5)):
        monkeypatch.setattr(pass_plan, "_FEW", 1)
        settings: dict[str, Any] = {"max_new_tokens": 32, "sampler": "random", "steps": 4, "infill": infill}
        texts = generate(model, [[1] * 8] * 3, seed=0, **settings).tokens
        sizes = {capacity for capacity, _, _ in capacities}
        assert all(kept <= capacity for capacity, kept, _ in capacities) and sizes <= {3, 6, 12, 24}
        assert len(sizes) > 1
        capacities.clear()
        monkeypatch.setattr(pass_plan, "_FEW", 64)
        assert generate(model, [[1] * 8] * 3, seed=0, **settings).tokens == texts
        assert {capacity for capacity, _, _ in capacities} == {24}, "a small batch has one size"
        capacities.clear()
    generate(model, [[1] * 8] * 3, max_new_tokens=16, seed=0)
    assert capacities == [(3, 3, 24)] * 16


# --- what stays between calls


def test_an_engine_stays_with_its_model_and_its_graphs_with_it(
    as_on_cuda: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, calls = tiny("dadlm"), []
    monkeypatch.setattr(
        GraphedCallable, "__call__", lambda self, function, _: calls.append(self) or function()
    )
    first = run(model)
    [kept], before = model.engines, set(calls)
    calls.clear()
    assert run(model) == first and model.engines == [kept] and set(calls) <= before
    assert run(copy.deepcopy(model)) == first and model.engines == [kept], "a copy has an engine of its own"
    memory = kept.slots.memory
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)  # in place: graphs read the new weights, and constants are computed anew
    assert run(model) == run(copy.deepcopy(model)) and kept.slots.memory is memory
    model.double().float()  # elsewhere: what was captured reads the old ones
    assert run(model) == run(copy.deepcopy(model)) and kept.slots.memory is not memory
    release_engine(model)
    assert not model.engines and run(model).tokens == run(copy.deepcopy(model)).tokens


def test_nothing_of_a_text_outlives_it() -> None:
    """Without graphs there is nothing worth keeping; and an engine does not keep its model alive."""
    model = tiny("dadlm")
    gc.disable()
    try:
        run(model)
        assert model.engines[0].slots.memory is None and model.backbone.modulation.kept is None
        gone = weakref.ref(model)
        del model
        assert gone() is None, "a circle of references would keep it until Python looks for circles"
    finally:
        gc.enable()


def test_two_texts_at_once_do_not_disturb_each_other() -> None:
    model = tiny("dadlm", architecture="bd3lm", tie_embedding=False)
    how = {"max_new_tokens": 8, "seed": 1}
    alone = [[event.ids for event in stream(model, prompt, **how)] for prompt in ([1, 2], [3])]
    both = [stream(model, prompt, **how) for prompt in ([1, 2], [3])]
    turns = list(zip_longest(*both))
    assert [[pair[side].ids for pair in turns if pair[side]] for side in (0, 1)] == alone
    assert model.head.kept is None and model.backbone.modulation.kept is None


def test_a_stream_that_nobody_reads_on_gives_its_engine_back() -> None:
    model = tiny("dadlm")
    events = stream(model, [1], max_new_tokens=8, seed=1)
    next(events)
    assert not model.engines
    with borrow_engine(model) as other:
        assert not other.rows, "an engine in use is not shared"
    events.close()
    assert len(model.engines) == 1 and not model.engines[0].rows


def test_memory_and_constants_are_those_of_the_rows_in_work(as_on_cuda: None) -> None:
    model = tiny("dadlm", architecture="bd3lm", tie_embedding=False)
    generate(model, [[1]] * 16, max_new_tokens=7, seed=0)
    generate(model, [[1] * 30], max_new_tokens=30, seed=0)
    state = model.engines[0].slots.state
    assert (state.slots, state.positions) == (1, 64), "many short rows before do not count"
    served = Engine(model, lockstep=False)
    served.reserve(3)
    request = Request(ids=(1, 2), settings=DecodeSettings(max_new_tokens=6), seed=0)
    for _ in range(3):
        served.add(request)
    memory = served.slots.memory
    served.step()
    assert served.slots.memory is memory and served.slots.state.slots == 3, "what was reserved is enough"
    served.clear()
    served.remove(served.add(request))  # before any step
    row = served.add(request)
    served.step()
    served.remove(row)
    assert model.backbone.keepers == 0 and model.backbone.modulation.kept is None
    release_engine(model)
    assert model.backbone.modulation.buffer is None


@pytest.mark.usefixtures("as_on_cuda")
def test_a_token_of_an_ar_model_is_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pass and what follows from it; rows are looked at after several tokens."""
    replayed, run_graph = [], Graphs.__call__
    admitted, admit = [], Engine._admit

    def watched(self, key, function, launches=1):
        replayed.append(key[0])
        return run_graph(self, key, function, launches)

    def watched_admission(self, model, only):
        admitted.append(self._begun)
        admit(self, model, only)

    monkeypatch.setattr(Graphs, "__call__", watched)
    monkeypatch.setattr(Engine, "_admit", watched_admission)
    model = silence_eot(tiny("ar"))
    generate(model, PROMPTS[:2], max_new_tokens=20, seed=3)
    assert replayed == ["pass"] * 20
    assert admitted.count(False) == 2  # 16 tokens, and 4


@pytest.mark.parametrize("family", ["ar", "bd3lm", "dadlm"])
def test_blocks_of_one_token_as_on_cuda(family: str, request: pytest.FixtureRequest) -> None:
    """Only an AR model's pass writes the keys and values of what it reads."""
    model, prompts = silence_eot(tiny(family, block=1)), [prompt_of(n) for n in (3, 4, 6)]
    plain = generate(model, prompts, max_new_tokens=20, seed=1)
    model.engines.clear()
    request.getfixturevalue("as_on_cuda")
    fixed = generate(model, prompts, max_new_tokens=20, seed=1)
    assert (fixed.tokens, fixed.cache_passes) == (plain.tokens, plain.cache_passes)

"""The acts of decoding as CUDA would run them, in place and at fixed shapes, against the plain way.

Capturing needs CUDA; what surrounds it does not. Here an act is called instead of replayed.
"""

import gc
import importlib
import threading
import time
import weakref
from collections import defaultdict
from contextlib import nullcontext
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.decode.tiny import FAMILIES, silence_eot, tiny

from dadlm.decode import DecodeSettings, Generated, engine, generate, stream
from dadlm.decode.generate import decode, start_rows
from dadlm.errors import ConfigError
from dadlm.model import Model
from dadlm.model import capture as capturing
from dadlm.model.capture import capture, lend_pool

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
def as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """State in place, and room whose size does not depend on the data."""
    start = engine.Engine.__init__

    def with_graphs(self, model, rows, predictor, settings, graphs):
        start(self, model, rows, predictor, settings, True)

    monkeypatch.setattr(engine.Engine, "__init__", with_graphs)
    monkeypatch.setattr(engine.Act, "__call__", lambda self, function: function())


def test_padded_ends_leave_room_for_what_comes_sooner(
    as_on_cuda: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end takes steps out of a row: a pass may keep more than was counted before the first one."""
    rooms, step = [], engine.Engine.step

    def seen(self: engine.Engine, room: int | None) -> engine.Step:
        rooms.append((room, self.block.ids.numel()))
        return step(self, room)

    monkeypatch.setattr(engine.Engine, "step", seen)
    monkeypatch.setattr(engine, "_FEW", 1)
    run(tiny("dadlm"), sampler="random", padded=True)
    assert rooms and all(room == positions for room, positions in rooms)


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
    settings = DecodeSettings(max_new_tokens=8)
    seen = []
    for step in decode(model, start_rows(model, [[1]], settings, 0), settings):
        seen.append((step.block.masked, step.block.masked.clone(), int(step.block.masked.sum())))
    assert all(torch.equal(now, then) for now, then, _ in seen)
    assert [count for _, _, count in seen] == [3, 2, 1, *[4, 3, 2, 1] * 2]


def test_finished_rows_leave_when_that_halves_the_batch(
    as_on_cuda: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    step = engine.Engine._step
    monkeypatch.setattr(
        engine.Engine, "_step", lambda self, room: sizes.append(len(self.block.ids)) or step(self, room)
    )
    model = silence_eot(tiny("bd3lm"))
    prompts = [[1] * 8] * 5  # each may write a block more than the one before
    settings = [
        start_rows(model, [p], DecodeSettings(max_new_tokens=4 * (row + 1)), 0)
        for row, p in enumerate(prompts)
    ]
    for _ in decode(
        model, [one for rows in settings for one in rows], DecodeSettings(sampler="random", steps=1)
    ):
        pass
    assert sizes == [5, 5, 5, 2, 1]


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
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    monkeypatch.setattr(capturing, "_stream", lambda _: None)
    monkeypatch.setattr(capturing, "_idle", defaultdict(list))
    monkeypatch.setattr(capturing, "_spoilt", set())
    return told


@pytest.mark.usefixtures("fake_cuda")
def test_a_capture_that_fails_is_told_once_and_decoding_goes_on() -> None:
    calls: list[int] = []
    act = engine.Act(graphs=True, launches=2)
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


class Borrower: ...


@pytest.mark.usefixtures("fake_cuda")
def test_a_pool_has_one_borrower_at_a_time() -> None:
    one, two = Borrower(), Borrower()
    first, second = lend_pool(0, one), lend_pool(0, two)
    assert first is not second
    del one
    three = Borrower()
    assert lend_pool(0, three) is first and lend_pool(1, Borrower()) is not first
    Graph.fails = [RuntimeError("not permitted")]
    with pytest.warns(UserWarning, match="without CUDA graphs"):
        assert capture("decoding", lambda: 7, first) is None
    del three  # what a failed capture has left in the middle is lent to nobody
    assert lend_pool(0, Borrower()) not in (first, second)
    Graph.fails = [RuntimeError("another thread captures")]
    del two
    assert lend_pool(0, Borrower()) is not None, "an idle one needs no capture"
    assert lend_pool(2, Borrower()) is None


def test_memory_of_large_graphs_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small graphs share a pool that stays; it must not grow with the largest batch there ever was."""
    given_back: list[int] = []
    handles = iter(("first", "second"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given_back.append(1))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    monkeypatch.setattr(engine, "lend_pool", lambda device, _: f"lent on {device}")
    on_cuda: Any = SimpleNamespace(
        graphs=True, lent=None, model=SimpleNamespace(device=torch.device("cuda", 1))
    )
    pools = [engine.Engine._pool(on_cuda, positions) for positions in (4096, 129, 128, 16)]
    assert pools == ["first", "second", "lent on 1", "lent on 1"] and len(given_back) == 2
    on_cpu: Any = SimpleNamespace(graphs=True, model=SimpleNamespace(device=torch.device("cpu")))
    assert engine.Engine._pool(on_cpu, 16) is None


def test_out_of_memory_says_what_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("dadlm.decode.generate")

    def full(*_: object, **__: object):
        raise torch.OutOfMemoryError("CUDA out of memory")
        yield

    monkeypatch.setattr(module, "decode", full)
    with pytest.raises(ConfigError, match=r"out of memory: 4 rows of 9 tokens .* batch_size 1"):
        generate(tiny("bd3lm"), [[1]] * 4, max_new_tokens=8, batch_size=4)


def test_room_is_what_each_pass_keeps_in_few_sizes(as_on_cuda: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    step = engine.Engine.step

    def look(self, room):
        done = step(self, room)
        seen.append((room, int(done.kept.sum())))
        return done

    monkeypatch.setattr(engine.Engine, "step", look)
    model = silence_eot(tiny("bd3lm", block=8))
    for infill in (None, (2, 0.5)):
        monkeypatch.setattr(engine, "_FEW", 1)
        settings: dict[str, Any] = {"max_new_tokens": 32, "sampler": "random", "steps": 4, "infill": infill}
        texts = generate(model, [[1] * 8] * 3, seed=0, **settings).tokens
        assert all(kept <= room for room, kept in seen) and {room for room, _ in seen} <= {3, 6, 12, 24}
        assert len({room for room, _ in seen}) > 1
        seen.clear()
        monkeypatch.setattr(engine, "_FEW", 64)
        assert generate(model, [[1] * 8] * 3, seed=0, **settings).tokens == texts
        assert {room for room, _ in seen} == {24}, "a small batch has one size"
        seen.clear()
    generate(model, [[1] * 8] * 3, max_new_tokens=16, seed=0)
    assert seen == [(3, 3)] * 16


def test_nothing_of_a_text_outlives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A circle of references would keep the cache of keys and values until Python looks for circles."""
    kept = []
    start = engine.Engine.__init__

    def look(self, model, rows, predictor, settings, graphs):
        kept.append(weakref.ref(predictor))
        start(self, model, rows, predictor, settings, graphs)

    monkeypatch.setattr(engine.Engine, "__init__", look)
    gc.disable()
    try:
        run(tiny("dadlm"))
        assert kept and all(one() is None for one in kept)
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

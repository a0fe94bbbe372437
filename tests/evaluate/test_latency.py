"""Which updates are timed, by a clock that the test turns; what a measurement says; memory."""

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.commands import Cli, refused
from tests.decode.tiny import FAMILIES, force_eot, prompt_of, silence_eot, tiny

from dadlm import Model
from dadlm.decode import DecodeSettings, stream
from dadlm.decode.engine import StepResult
from dadlm.decode.slots import ONCE_PER_BLOCK
from dadlm.errors import ConfigError
from dadlm.evaluate.latency import latency, random_prompts, time_updates, watch_memory
from dadlm.evaluate.timing import doubts, other_work
from dadlm.model import save

# The module itself: its name in the package is the function's.
module = import_module("dadlm.evaluate.latency")


class Clock:
    """Time passes only where the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.mark.parametrize("prompt_tokens", [1, 7])
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("mdlm", {}),
        ("bd3lm", {}),
        ("dadlm", {"infill": (2, 0.5)}),
        ("bd3lm", {"sampler": "random", "steps": 3}),
        ("bd3lm", {"sampler": "random", "steps": 1}),
        ("dadlm", {"sampler": "confidence", "threshold": 0.6, "path": "viterbi"}),
        ("ar", {}),
    ],
)
def test_what_is_timed_in_every_way_to_decode(
    family: str, options: dict[str, Any], prompt_tokens: int, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Update n takes n ms; `stream` says by the block's number which ones begin a block."""
    model, prompt = silence_eot(tiny(family)), prompt_of(prompt_tokens)
    decode_steps = module.decode_steps
    updates: list[tuple[int, bool]] = []

    def ticking(*what: Any) -> Iterator[StepResult]:
        for number, result in enumerate(decode_steps(*what)):
            clock.now += number / 1000
            if result.step is not None:
                updates.append((number, bool(result.committed)))
            yield result

    blocks = [
        event.block for event in stream(model, prompt, seed=3, max_new_tokens=64 - prompt_tokens, **options)
    ]
    monkeypatch.setattr(module, "decode_steps", ticking)
    took = time_updates(model, [prompt], DecodeSettings(**options), steps=20, warmup=0, seed=3)
    inside = [
        number
        for (number, committed), block, before in zip(updates, blocks, [None, *blocks], strict=False)
        if number > 1 and block == before and not committed
    ]
    if not inside:  # one update a block
        inside = [number for number, _ in updates[: len(blocks)] if number > ONCE_PER_BLOCK]
    both = slice(min(len(took), len(inside)))
    assert took[both] == pytest.approx(inside[both]) and both.stop > 5


class Update:
    """A result of rows [B], some of which had something to decide when their block began."""

    committed: tuple[()] = ()

    def __init__(self, rows: int, deciding: int, begins: bool) -> None:
        block = SimpleNamespace(
            step=torch.full((rows,), int(not begins)),
            masked=torch.arange(rows)[:, None] < torch.tensor([deciding, 0, 0, 0]),
        )
        self.step = SimpleNamespace(block=block)


def test_rows_that_wait_for_others_in_their_block_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three texts that need different numbers of updates for a block: none is over, no others are begun."""
    begun, decode_steps = [], module.decode_steps
    monkeypatch.setattr(module, "decode_steps", lambda *what: begun.append(what) or decode_steps(*what))
    prompts = [prompt_of(4, row) for row in range(3)]
    settings = DecodeSettings(sampler="confidence", threshold=0.6, path="viterbi")
    took = time_updates(silence_eot(tiny("dadlm")), prompts, settings, steps=20, warmup=0)
    assert len(took) == 20 and len(begun) == 1


@pytest.mark.parametrize("dropped", [True, False], ids=["dropped", "kept"])
def test_a_batch_with_a_finished_text_is_left_for_another(
    dropped: bool, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether decoding drops a finished row or keeps it idle: a step of fewer rows is another step."""
    seeds = []

    def decoding(model: Model, rows: list[Any]) -> Iterator[Update]:
        seeds.append(rows[0].seed)
        for number in range(8):
            clock.now += 0.001 if number < 4 else 1.0
            working = len(rows) - (number >= 4)
            yield Update(working if dropped else len(rows), working, begins=number % 4 == 0)

    monkeypatch.setattr(module, "decode_steps", decoding)
    took = time_updates(tiny("bd3lm"), [prompt_of(4, row) for row in range(5)], warmup=1, steps=5, seed=7)
    assert took == pytest.approx([1.0] * 5)  # two of each text
    assert seeds == [7, 12, 17]


def test_blocks_of_two_updates_are_timed() -> None:
    """One begins the block, the other ends it."""
    settings = DecodeSettings(sampler="random", steps=2)
    assert len(time_updates(silence_eot(tiny("bd3lm")), [prompt_of(4)], settings, steps=5, warmup=2)) == 5


def test_blocks_that_are_decided_at_once_are_not_tried_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    monkeypatch.setattr(module, "_wait", lambda model: passes.append(1))
    settings = DecodeSettings(sampler="confidence", threshold=0.0)
    assert time_updates(silence_eot(tiny("bd3lm")), [prompt_of(4)], settings, steps=5, warmup=2) == []
    assert len(passes) == 2 * 20 * 8  # two looks at the clock, blocks and texts that are tried


def test_texts_that_end_at_once_are_not_tried_for_ever() -> None:
    model = force_eot(tiny("ar"))
    assert time_updates(model, [prompt_of(4)], steps=1, warmup=0) == []
    with pytest.raises(ConfigError, match=r"mine could be timed.*smaller batch"):
        latency({"mine": model}, batch_size=2)


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    return {family: silence_eot(tiny(family)) for family in FAMILIES}


def test_every_family_is_measured(models: dict[str, Model], tmp_path: Path) -> None:
    result = latency(models, batch_size=2, steps=3, warmup=1, new_tokens=8, out=tmp_path)
    assert result == json.loads((tmp_path / "latency.json").read_text())
    assert (result["kind"], result["device"], result["prompt_tokens"]) == ("latency", "cpu", 32)
    rows = {row["model"]["family"]: row for row in result["rows"]}
    assert list(rows) == list(FAMILIES)
    for row in rows.values():
        assert 0 < row["ms_min"] <= row["ms_median"] <= row["ms_max"]
        assert row["ms_min"] <= row["ms_mean"] <= row["ms_max"]
        assert row["updates"] == 3
    assert rows["bd3lm"]["ratio_to_bd3lm"] == 1
    ratio = rows["dadlm"]["ms_median"] / rows["bd3lm"]["ms_median"]
    assert rows["dadlm"]["ratio_to_bd3lm"] == pytest.approx(ratio)
    assert rows["ar"]["ratio_to_bd3lm"] is rows["mdlm"]["ratio_to_bd3lm"] is None


def test_ratios_are_to_the_same_block_size() -> None:
    pair = {"b": silence_eot(tiny("bd3lm", block=8)), "d": silence_eot(tiny("dadlm", block=4))}
    rows = latency(pair, batch_size=1, steps=1, warmup=0, new_tokens=4)["rows"]
    assert [row["ratio_to_bd3lm"] for row in rows] == [1, None]


def test_memory_is_looked_at_before_and_after_each_step(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decoder of three steps; the second holds the most."""
    seen = iter([100.0, 120.0, 164.0, 108.0])
    monkeypatch.setattr(module, "decode_steps", lambda *_: iter(range(3)))
    monkeypatch.setattr(module, "_memory", lambda _: next(seen))
    memory = watch_memory(models["bd3lm"], [prompt_of(4)], DecodeSettings(max_new_tokens=4), 0)
    assert memory == {"start": 100.0, "end": 108.0, "peak": 164.0}


def test_random_prompts_never_end_a_text() -> None:
    model = tiny("ar", vocab=5)  # ids 0..2 are words, 3 ends a text, 4 is the mask
    prompts = random_prompts(model, 3, 50, seed=1)
    assert [len(prompt) for prompt in prompts] == [50] * 3
    assert {id_ for prompt in prompts for id_ in prompt} == {0, 1, 2}
    assert prompts != random_prompts(model, 3, 50, seed=2) and prompts[0] != prompts[1]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"steps": 0}, "steps"),
        ({"warmup": -1}, "warmup"),
        ({"prompt_tokens": 64}, "prompt_tokens must be in 1..63"),
        ({"prompt_tokens": 0}, "prompt_tokens"),
        ({"new_tokens": 99}, "max_new_tokens is 99"),
    ],
)
def test_bad_settings_are_refused(models: dict[str, Model], options: dict[str, Any], told: str) -> None:
    small: dict[str, Any] = {"batch_size": 1, "steps": 1, "warmup": 0}
    with pytest.raises(ConfigError, match=told):
        latency({"bd3lm": models["bd3lm"]}, **small | options)
    with pytest.raises(ConfigError, match="no models"):
        latency({})


def test_command(cli: Cli, tmp_path: Path) -> None:
    for family in ("bd3lm", "dadlm"):
        save(tiny(family), tmp_path / family / "last")
    words = ["evaluate", "latency", "--model", "bd3lm/last", "dadlm/last", "--batch-size", 2, "--steps", 2]
    words += ["--warmup", 1, "--new-tokens", 4, "--device", "cpu"]
    result = cli(*words, "--json")
    assert (result.code, result.err) == (0, "")
    assert [row["model"]["name"] for row in result.json["rows"]] == ["bd3lm", "dadlm"]
    assert result.json == json.loads(
        (
            tmp_path
            / "evaluation/latency-bd3lm-dadlm-new_tokens-4-batch_size-2-steps-2-warmup-1/latency.json"
        ).read_text()
    )
    table = cli(*words)
    assert table.code == 0 and "1.000" in table.out and "resident" in table.out
    refused(cli("evaluate", "latency", "--model"), "no models")
    refused(cli("evaluate", "latency", "--model", "./bd3lm", "./bd3lm"), "twice")


def test_models_take_turns() -> None:
    """A machine that slows down half way must not spoil one model alone."""
    calls: list[str] = []

    def timer(name: str) -> Iterator[float]:
        while True:
            calls.append(name)
            yield float(len(calls))

    took = module.alternately({"a": timer("a"), "b": timer("b")}, steps=12, warmup=2)
    assert "".join(calls) == "aabb" + "aaaaabbbbb" * 2 + "aabb"
    assert [len(times) for times in took.values()] == [12, 12] and took["a"][0] == 5.0


@pytest.mark.parametrize(
    ("quartiles", "load", "threads", "expected"),
    [
        ([9.9, 10.1], 0.5, 1, []),
        ([8.0, 12.0], 0.5, 1, ["half of those of x lie 40% of the median apart"]),
        ([9.9, 10.1], 99.0, 1, ["a load average of 99.0"]),
        ([9.9, 10.1], 0.5, 1000, ["1000 threads on"]),
    ],
)
def test_times_that_mean_nothing_are_doubted(
    quartiles: list[float], load: float, threads: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    row = {"model": {"name": "x"}, "ms_median": 10.0, "ms_quartiles": quartiles}
    lines = doubts([row | {"other_work": other_work([tiny("bd3lm")])}])
    assert len(lines) == len(expected)
    assert all(words in line for words, line in zip(expected, lines, strict=True))


def test_doubts_are_shown(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "other_work", lambda _: "a build")
    save(tiny("bd3lm"), tmp_path / "model")
    words = ["evaluate", "latency", "--model", "model", "--batch-size", 1, "--steps", 1, "--new-tokens", 4]
    assert "Do not rely on these times: there was other work, a build." in cli(*words).out

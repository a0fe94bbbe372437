"""Ctrl-C, SIGTERM and kill -9 against a real process; the same command then goes on to the end."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.train.runs import assert_same_bits, metrics, progress, state_tensors
from tests.train.worker import environment, train_command, wait_for

from dadlm.cli import main
from dadlm.model import load
from dadlm.train.processes import stop_on_signal

STEPS = 240  # so many that none of the signals comes too late on a machine that stands still for a second


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command, all but --out."""
    more = "--model.layers 1 --model.dropout 0.1 --noise.no-even --noise.clip-search --train.batch-size 2"
    return train_command(tmp_path_factory.mktemp("signals"), "bd3lm", STEPS, more)


@pytest.fixture(scope="module")
def straight(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody disturbed."""
    out = tmp_path_factory.mktemp("straight") / "run"
    assert main([*words, "--out", str(out), "--json"]) == 0
    return out


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    """Start a command as a process of its own; whatever still runs at the end of the test is killed."""
    started: list[subprocess.Popen[str]] = []

    def begin(words: list[str]) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "dadlm.cli", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env=environment(), **pipes))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_first_and_the_same_command_goes_on(
    number: signal.Signals, words: list[str], straight: Path, start, tmp_path: Path, capsys
) -> None:
    out = tmp_path / "run"
    command = [*words, "--out", str(out)]
    process = start(command)
    wait_for(process, out, 5)
    process.send_signal(number)
    printed, complaints = process.communicate(timeout=240)
    assert process.returncode == 130, complaints
    assert "Traceback" not in complaints
    step = progress(out / "last")["step"]
    assert 5 <= step < STEPS
    assert f"stopped at step {step}; saved in {out}" in printed.replace("\n", " ")
    assert load(out / "last").config.family == "bd3lm"
    assert main(command) == 0
    assert f"finished at step {STEPS}" in capsys.readouterr().out
    assert_same_bits(state_tensors(out / "last"), state_tensors(straight / "last"))
    assert metrics(out) == metrics(straight)


@pytest.mark.parametrize("blows", [3, pytest.param(30, marks=pytest.mark.acceptance)])
def test_killed_at_random_moments_every_resume_works(
    blows: int, words: list[str], straight: Path, start, tmp_path: Path
) -> None:
    """It saves after every step, so that the blow often falls into the middle of a save."""
    out, chance = tmp_path / "run", random.Random(0)
    command = [*words, "--out", str(out), "--train.save-every", "1"]
    reached = 0
    for _ in range(blows):
        process, more = start(command), min(8, STEPS // blows - 2)
        wait_for(process, out, reached + more)
        time.sleep(chance.random() * 0.03)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        for name in ("last", "best") if (out / "best").exists() else ("last",):
            assert load(out / name).config.family == "bd3lm" and state_tensors(out / name)
        saved = progress(out / "last")["step"]
        assert saved >= reached + more - 1  # at most the step that was being saved is lost
        reached = saved
    assert main([*command[:-2], "--json"]) == 0
    for name in ("last", "best"):
        assert (out / name).resolve().name == (straight / name).resolve().name
        assert_same_bits(state_tensors(out / name), state_tensors(straight / name))
    assert metrics(out) == metrics(straight)
    assert len(list((out / "checkpoints").iterdir())) <= 2, "what the killed ones left is cleared away"


def test_a_second_ctrl_c_does_not_wait() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt), stop_on_signal() as stop:
        assert not stop.asked
        signal.raise_signal(signal.SIGTERM)
        assert stop.asked
        signal.raise_signal(signal.SIGTERM)  # only Ctrl-C is impatient
        signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_the_handler_takes_no_lock() -> None:
    """A second signal may come while it runs, and would wait for what the first one holds."""
    called = []
    with stop_on_signal() as stop:
        handler = signal.getsignal(signal.SIGTERM)
        assert callable(handler)
        sys.setprofile(
            lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None
        )
        handler(signal.SIGTERM, None)
        sys.setprofile(None)
    assert stop.asked and called == [handler.__name__]

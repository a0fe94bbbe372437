"""Checkpoints appear whole or not at all; whatever happens while one is written, the one before survives."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError
from tests.train.runs import (
    assert_same_bits,
    before_step,
    config,
    metrics,
    poison,
    progress,
    state_tensors,
    train,
    trainer,
    with_train,
)

from dadlm.errors import DadlmError, TrainingError
from dadlm.model import files, load
from dadlm.model.checkpoint import weights
from dadlm.train import Trainer, loop
from dadlm.train import trainer as trainer_module


def kept(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "checkpoints").iterdir())


def test_last_and_best_are_links_and_only_what_they_need_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = iter([3.0, 2.0, 2.5, 4.0])  # the second of four validations is the best
    score = trainer_module.score_rows

    def worse(*arguments: Any, **options: Any) -> Any:
        scores = score(*arguments, **options)
        scores.reconstruction.fill_(next(values))
        return scores

    monkeypatch.setattr(trainer_module, "score_rows", worse)
    done = train(config("bd3lm", tmp_path, valid_every=3, save_every=2))
    assert done.valid == 2.0
    assert kept(tmp_path) == ["step-00000006", "step-00000012"]
    assert os.readlink(tmp_path / "best") == "checkpoints/step-00000006"
    assert os.readlink(tmp_path / "last") == "checkpoints/step-00000012"
    assert progress(tmp_path / "best")["step"] == 6 and progress(tmp_path / "best")["best"] == 2.0
    assert progress(tmp_path / "last")["step"] == 12 and progress(tmp_path / "last")["best"] == 2.0


def test_a_run_can_be_moved(tmp_path: Path) -> None:
    train(config("bd3lm", tmp_path / "here"), stop_at=5)
    (tmp_path / "here").rename(tmp_path / "there")
    assert load(tmp_path / "there").config.family == "bd3lm"
    assert train(config("bd3lm", tmp_path / "there")).step == 12


def test_a_checkpoint_holds_the_averages_and_the_whole_configuration(tmp_path: Path) -> None:
    run = config("dadlm", tmp_path)
    one = trainer(run)
    one.run()
    assert_same_bits(weights(load(tmp_path / "last")), one.state.ema.average)
    names = {path.relative_to(tmp_path / "last").as_posix() for path in (tmp_path / "last").rglob("*")}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "training"} | {
        "training/state.json",
        "training/state.safetensors",
    }
    assert progress(tmp_path / "last")["run"]["train"]["lr"] == run.train.lr
    assert load(tmp_path / "last").config == one.state.model.config


FULL = {
    "system": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "safetensors": SafetensorError(
        "Error while serializing: I/O error: No space left on device (os error 28)"
    ),
}


@pytest.mark.parametrize("full", FULL)
@pytest.mark.parametrize("file", ["model.safetensors", "state.safetensors"])
def test_a_full_disk_leaves_the_previous_checkpoint(
    full: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = config("bd3lm", tmp_path, save_every=3)
    one, write = trainer(run), files.save_file

    def save_file(tensors: Any, target: Path, **options: Any) -> None:
        if one.state.step >= 6 and target.name == file:
            target.write_bytes(b"half a file")
            raise FULL[full]
        write(tensors, target, **options)

    monkeypatch.setattr(files, "save_file", save_file)
    with pytest.raises(DadlmError) as caught:
        one.run()
    told = str(caught.value)
    assert "No space left on device" in told and "step-00000006" in told and "nothing was replaced" in told
    assert kept(tmp_path) == [f"step-{4:08d}"]  # the best so far, and the last; nothing temporary
    monkeypatch.setattr(files, "save_file", write)
    assert load(tmp_path / "last").config.family == "bd3lm"
    assert train(run).step == 12
    train(config("bd3lm", tmp_path / "straight", save_every=3))
    assert_same_bits(state_tensors(tmp_path / "last"), state_tensors(tmp_path / "straight" / "last"))


def test_the_log_survives_a_disk_that_is_full_when_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed run leaves entries behind its checkpoint; cutting them must not cost the others."""
    train(config("bd3lm", tmp_path), stop_at=5)
    before = metrics(tmp_path)
    with open(tmp_path / "metrics.jsonl", "a", encoding="utf-8") as handle:
        handle.write('{"step": 6, "loss": 1.0}\n')

    def full(self: Path, *_: Any, **__: Any) -> int:
        self.write_bytes(b"")  # opening for writing empties a file before the first byte is refused
        raise FULL["system"]

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises((DadlmError, OSError), match="No space left"):
        loop.Log(tmp_path, "bd3lm", 12, 5, quiet=True)
    assert metrics(tmp_path)[: len(before)] == before


class Killed(BaseException):
    """Stands for kill -9: from here on nothing more happens to the disk."""


OPERATIONS = ("mkdir", "rename", "replace", "symlink", "unlink", "rmdir", "fsync", "open")


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int | None], None]]:
    """Let the process die at the n-th change to the disk that is made from now on."""
    left: list[int | None] = [None]
    real = {name: getattr(os, name) for name in OPERATIONS}

    def dying(name: str) -> Callable[..., Any]:
        def operation(*arguments: Any, **options: Any) -> Any:
            if name == "open" and not (arguments[1] & (os.O_CREAT | os.O_WRONLY)):
                return real[name](*arguments, **options)
            if left[0] is not None:
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
            return real[name](*arguments, **options)

        return operation

    for name in OPERATIONS:
        monkeypatch.setattr(os, name, dying(name))
    yield lambda count: left.__setitem__(0, count)
    left[0] = None


def test_a_run_killed_at_any_change_to_the_disk_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill_at: Callable[[int | None], None]
) -> None:
    """Every checkpoint is saved after a validation that improved, so all links move each time."""
    plan = {"steps": 4, "valid_every": 1, "valid_rows": 4}
    score = Trainer.score

    def improving(self: Trainer) -> Any:
        scores, probed = score(self)
        scores.reconstruction.fill_(-self.state.step)
        return scores, probed

    monkeypatch.setattr(Trainer, "score", improving)
    train(config("bd3lm", tmp_path / "straight", **plan))
    straight = tmp_path / "straight"
    assert os.readlink(straight / "best") == "checkpoints/step-00000004"
    train(with_train(config("bd3lm", tmp_path / "begun", **plan), steps=2))
    dead, count = 0, 0
    while True:
        out = tmp_path / f"killed-{count}"
        run = config("bd3lm", out, **plan)
        shutil.copytree(tmp_path / "begun", out, symlinks=True)
        one = trainer(run)
        before_step(one, 3, lambda count=count: kill_at(count))
        with suppress(Killed):
            one.run()
            break  # it lived to the end
        kill_at(None)
        dead += 1
        assert load(out / "last").config.family == "bd3lm", f"change {count}: last cannot be loaded"
        assert load(out / "best").config.family == "bd3lm", f"change {count}: best cannot be loaded"
        was_finished = progress(out / "last")["step"] == 4  # then nothing is saved again, nor tidied
        assert train(run).step == 4, f"change {count}"
        assert_same_bits(state_tensors(out / "last"), state_tensors(straight / "last"))
        assert os.readlink(out / "best") == os.readlink(straight / "best"), f"change {count}: best is stale"
        assert was_finished or kept(out) == kept(straight), f"change {count}: leavings stay"
        assert metrics(out) == metrics(straight)
        count += 1
    assert dead > 20, "two checkpoints take more changes to the disk than that"


def test_nan_right_after_a_save_never_leaves_last_without_a_target(
    tmp_path: Path, kill_at: Callable[[int | None], None]
) -> None:
    """The state to save is the one that is saved already: writing it again must not endanger it."""
    count = 0
    while True:
        out = tmp_path / str(count)
        one = trainer(config("bd3lm", out, save_every=3, steps=6))

        with pytest.MonkeyPatch.context() as patch:
            before_step(one, 4, lambda patch=patch, count=count: (poison(patch), kill_at(count)))
            with pytest.raises((TrainingError, Killed)) as end:
                one.run()
        kill_at(None)
        assert load(out / "last").config.family == "bd3lm", f"change {count} to the disk"
        assert progress(out / "last")["step"] == 3
        if end.type is TrainingError:
            break
        count += 1

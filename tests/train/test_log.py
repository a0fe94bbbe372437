"""What training tells, and that the value it tells is the one that evaluation gives."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.train.runs import (
    FAMILIES,
    before_step,
    config,
    metrics,
    text,
    tokenizer,
    train,
    trainer,
    with_noise,
)

from dadlm.evaluate import score_rows
from dadlm.model import load
from dadlm.train import Trainer, loop
from dadlm.train import log as log_module
from dadlm.train.log import Log
from dadlm.train.trainer import fresh_model


@pytest.mark.parametrize("family", FAMILIES)
def test_validation_is_the_score_of_the_saved_model(family: str, tmp_path: Path) -> None:
    """The last validation and the last checkpoint belong together; so do the best ones."""
    run = config(family, tmp_path, valid_rows=20)
    done = train(run)
    key = "valid_reconstruction" if family == "dadlm" else "valid_loss"
    logged = [entry for entry in metrics(tmp_path) if key in entry]
    assert [entry["step"] for entry in logged] == [4, 8, 12]
    valid = text(32, 2)
    last = score_rows(load(tmp_path / "last"), valid, count=20, batch_size=7)
    assert float(last.reconstruction.mean()) == pytest.approx(logged[-1][key], abs=1e-5)
    best = score_rows(load(tmp_path / "best"), valid, count=20, batch_size=20)
    assert float(best.reconstruction.mean()) == pytest.approx(done.valid, abs=1e-5)
    assert done.valid == min(entry[key] for entry in logged)
    if family == "dadlm":
        assert logged[-1]["valid_bound"] == pytest.approx(float(last.bound.mean()), abs=1e-5)
        assert logged[-1]["valid_gap"] == pytest.approx(last.gap, abs=1e-5)
        assert logged[-1]["valid_gap"] != 0
        assert all("gap" in entry for entry in metrics(tmp_path) if "loss" in entry)


@pytest.mark.parametrize("family", ["bd3lm", "dadlm"])
def test_models_with_edges_log_their_bound_and_what_the_graph_adds(family: str, tmp_path: Path) -> None:
    train(config(family, tmp_path, edge="bilinear", valid_rows=20))
    logged = [entry for entry in metrics(tmp_path) if "valid_reconstruction" in entry][-1]
    last = score_rows(load(tmp_path / "last"), text(32, 2), count=20, batch_size=7)
    expected = {
        "reconstruction": float(last.reconstruction.mean()),
        "bound": float(last.bound.mean()),
        "gap": last.gap,
    }
    if family == "dadlm":
        expected["graph_gap"] = float(last.graph_gap.mean())
        assert expected["graph_gap"] != expected["gap"]
    found = {name.removeprefix("valid_"): value for name, value in logged.items() if name != "step"}
    assert found == pytest.approx(expected, abs=1e-5)
    assert expected["gap"] != 0


def test_each_validation_line_and_the_bar_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = config("dadlm", tmp_path)
    Trainer(run, fresh_model(run.model, tokenizer(), 0), text(40, 1), text(32, 2)).run()
    printed = capsys.readouterr().out
    for step in (4, 8, 12):
        values = next(entry for entry in metrics(tmp_path) if entry["step"] == step and "valid_gap" in entry)
        line = next(line for line in printed.splitlines() if line.startswith(f"step {step:>6}"))
        assert f"reconstruction {values['valid_reconstruction']:.4f}" in line and "gap" in line
    bar = printed.splitlines()[-1]
    assert "12/12" in bar and "loss" in bar and "tok/s" in bar and "0:00:00" in bar


def test_a_quiet_run_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(config("bd3lm", tmp_path, steps=2))
    assert capfd.readouterr() == ("", "")


def test_tensorboard_holds_the_same_numbers(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(config("bd3lm", tmp_path), stop_at=6)
    train(config("bd3lm", tmp_path))
    board = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    for name in ("loss", "lr", "valid_loss"):
        wanted = [(entry["step"], entry[name]) for entry in metrics(tmp_path) if name in entry]
        shown = [(event.step, event.value) for event in board.Scalars(name)]
        assert [step for step, _ in shown] == [step for step, _ in wanted]
        assert [value for _, value in shown] == pytest.approx([value for _, value in wanted], rel=1e-5)


def test_without_tensorboard_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    assert train(config("bd3lm", tmp_path, steps=2)).step == 2
    assert not (tmp_path / "tensorboard").exists() and len(metrics(tmp_path)) == 3


def test_entries_behind_the_checkpoint_and_a_torn_line_are_cut(tmp_path: Path) -> None:
    train(config("bd3lm", tmp_path), stop_at=5)
    before = metrics(tmp_path)
    with open(tmp_path / "metrics.jsonl", "a", encoding="utf-8") as handle:
        handle.write('{"step": 6, "loss": 1.0, "lr": 1}\n{"step": 7, "lo')
    Log(tmp_path, "bd3lm", 12, 5, quiet=True)
    assert metrics(tmp_path) == before


def test_a_run_that_was_killed_before_its_first_save_logs_the_model_it_began_with_once(
    tmp_path: Path,
) -> None:
    train(config("bd3lm", tmp_path / "first"))
    run = replace(config("bd3lm", tmp_path / "second"), init_from=str(tmp_path / "first"))
    one = trainer(run)
    before_step(one, 3, lambda: (_ for _ in ()).throw(SystemError("killed")))
    with pytest.raises(SystemError):
        one.run()
    assert not (tmp_path / "second" / "last").exists()
    train(run)
    assert [entry["step"] for entry in metrics(tmp_path / "second") if "valid_loss" in entry] == [0, 4, 8, 12]


def test_the_speed_counts_the_steps_since_the_entry_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One second a step by this clock: the speed is the tokens of a step, also in a short last stretch."""
    one = trainer(config("bd3lm", tmp_path, steps=12, log_every=5, valid_every=100))
    monkeypatch.setattr(loop.time, "perf_counter", lambda: float(one.state.step))
    one.run()
    lines = (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()
    speeds = {entry["step"]: entry.get("tokens_per_second") for entry in map(json.loads, lines[:3])}
    assert speeds == pytest.approx({5: 4 * 16, 10: 4 * 16, 12: 4 * 16})


def test_the_first_loss_is_that_of_a_uniform_guess(tmp_path: Path) -> None:
    """Nats per token, divided by the tokens that are predicted: all but the first of a row."""
    one = trainer(config("ar", tmp_path, batch_size=8))
    with torch.no_grad():
        one.state.model.backbone.embedding.weight.zero_()  # also the vocabulary head
    assert one.step() == pytest.approx(math.log(31), abs=1e-5)


def test_a_clipped_interval_is_logged(tmp_path: Path) -> None:
    train(with_noise(config("bd3lm", tmp_path, valid_rows=32), clip_search=True))
    searched = [entry for entry in metrics(tmp_path) if "noise_low" in entry]
    assert len(searched) == 3
    assert all(0 < entry["noise_low"] < entry["noise_high"] <= 1 for entry in searched)


def test_a_probe_is_logged_with_the_averaged_weights(tmp_path: Path) -> None:
    run = config("bd3lm", tmp_path)
    one = trainer(run, probe=lambda model: {"probe": float(model.backbone.embedding.weight.detach().sum())})
    one.run()
    logged = [entry["probe"] for entry in metrics(tmp_path) if "probe" in entry]
    assert len(logged) == 3
    saved = load(tmp_path / "last").backbone.embedding.weight.detach().sum()
    assert logged[-1] == pytest.approx(float(saved), abs=1e-4)


def test_a_file_gets_a_line_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where there is no terminal for a bar."""
    now = iter(range(0, 10_000, 25))
    monkeypatch.setattr(log_module.time, "monotonic", lambda: next(now))
    log = log_module.Log(tmp_path, "ar", 8, 0, quiet=False)
    for step in range(1, 9):
        log.step(step, {"loss": 1.5, "tokens_per_second": 10.0} if step % 2 else None)
    assert [line.split()[:4] for line in capsys.readouterr().out.splitlines()] == [
        ["step", "5", "loss", "1.500"]
    ]

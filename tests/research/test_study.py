"""Runs of the study: what is finished stays as it is, and nothing is trained on what is not."""

import json
import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dadlm import Model, recipes
from dadlm.model.edge import Bilinear
from dadlm.tokens import prepare, word_level
from dadlm.train.edges import is_fresh, set_edges
from research import study
from research.plan import Run, plan

WORDS = [f"w{number}" for number in range(30)]
SHAPE = {"vocab_size": 32, "eot_id": 30, "context": 16, "layers": 1, "width": 16, "heads": 2, "expand_at": 0}


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The study in small: an AR model, and a BD3LM that starts from it."""
    (tmp_path / "text.txt").write_text(" ".join(WORDS * 40), encoding="utf-8")
    shards = prepare(str(tmp_path / "text.txt"), word_level(WORDS), tmp_path / "cache").folder

    def recipe(name: str, **changes: Any) -> Any:
        made = recipes.recipe(name, **changes)
        few = {"batch_size": 2, "valid_rows": 2, "device": "cpu"}
        return replace(made, model=replace(made.model, **SHAPE), train=replace(made.train, **few))

    often = {"valid_every": 2, "warmup": 1}
    runs = {
        "first": Run(family="ar", steps=6, train=often),
        "second": Run(family="bd3lm", steps=4, after="first", model={"block_size": 4}, train=often),
    }
    monkeypatch.setattr(study, "recipe", recipe)
    monkeypatch.setattr(study, "plan", lambda: runs)
    words = ["study", "train", "first", "second", "--train", str(shards), "--valid", str(shards)]
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(tmp_path / "out"), "--quiet"])
    return words


def curves(folder: Path) -> dict[str, Any]:
    files = (folder / "out").glob("*/curve.json")
    return {file.parent.name: json.loads(file.read_text(encoding="utf-8")) for file in files}


def test_what_is_finished_stays_as_it_is(command: list[str], tmp_path: Path) -> None:
    assert study.main() == 0
    before = curves(tmp_path)
    assert {name: one["steps"] for name, one in before.items()} == {"first": 6, "second": 4}
    assert [entry["step"] for entry in before["second"]["curve"]] == [0, 2, 4]
    assert all(one["seconds"] > 0 for one in before.values())
    assert study.main() == 0
    assert curves(tmp_path) == before


def test_after_a_stop_nothing_is_trained_until_the_run_is_resumed(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step = study.Trainer.step

    def stopped(self: Any) -> Any:
        if self.state.step == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self)

    monkeypatch.setattr(study.Trainer, "step", stopped)
    with pytest.raises(SystemExit, match="130"):
        study.main()
    assert "first: stopped at step 3" in capsys.readouterr().out
    assert curves(tmp_path) == {} and not (tmp_path / "out" / "second").exists()
    monkeypatch.setattr(study.Trainer, "step", step)
    assert study.main() == 0
    assert curves(tmp_path)["first"]["steps"] == 6
    assert curves(tmp_path)["first"]["seconds"] is None  # of two starts


def test_an_unfinished_run_is_no_start(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert study.main() == 0
    (tmp_path / "out" / "first" / "curve.json").unlink()
    shutil.rmtree(tmp_path / "out" / "second")
    sys.argv.remove("first")
    assert study.main() == 2
    assert "second starts from first, which is not finished" in capsys.readouterr().err


def test_what_is_measured_names_its_runs(command: list[str], tmp_path: Path) -> None:
    assert study.main() == 0
    sys.argv[1:4] = ["measure", "first", "second:second", "--count", "3", "--device", "cpu"]
    assert study.main() == 0
    files = sorted((tmp_path / "out" / "measured").iterdir())
    found = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}
    assert list(found) == [
        *("one-pass-second", "perplexity-first", "perplexity-second", "reconstruction-second-against-second")
    ]
    assert all(one["model"]["name"] in name and one["count"] == 3 for name, one in found.items())
    pair = found["reconstruction-second-against-second"]
    assert pair["against"]["name"] == "second" and pair["difference"]["mean"] == 0


def test_edges_that_ship_start_those_of_a_run() -> None:
    """Those that ship look two places to the left, too; a run of the plan has edges of first order."""
    left, right = study.shipped_edges()
    run = study.config_of("edges-16", plan()["edges-16"], Path("out"), None)
    model = Model(run.model)
    assert is_fresh(model) and isinstance(model.head.edge, Bilinear)
    set_edges(model, left, right)
    assert model.head.edge.right[: len(right)].equal(right)

"""The models that ship with the package: their names, their files, and the script that makes them."""

import json
import re
import shutil
import zipfile
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from tests.decode.tiny import tiny
from tests.model.shipped import WORDS, ship_tiny
from tests.train.runs import config

from dadlm import generate
from dadlm.errors import CheckpointError
from dadlm.evaluate import rows_of, score_rows
from dadlm.interop.convert import convert
from dadlm.model import Model, load, pretrained, save
from dadlm.model.checkpoint import weights
from dadlm.tokens import word_level
from tools import ship

ROOT = Path(__file__).parents[2]
PRETRAINED = ROOT / "src" / "dadlm" / "pretrained"
MIB = 1 << 20


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Model]:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return ship_tiny(tmp_path / "pretrained", monkeypatch)


def same(one: Model, other: Model, by: float) -> bool:
    pairs = zip(weights(one).values(), weights(other).values(), strict=True)
    return all(torch.allclose(a, b, atol=by, rtol=0) for a, b in pairs)


# Names


@pytest.mark.parametrize("name", ["dadlm", "bd3lm", "ar", "dadlm-edges", "bd3lm-edges"])
def test_a_name_gives_the_shipped_model(name: str, shipped: dict[str, Model]) -> None:
    model = load(name)
    assert model.config == shipped[name].config and same(model, shipped[name], by=0.02)
    assert model.tokenizer == word_level(WORDS)  # one for all of them
    assert len(generate(model, ["w1 w2"], max_new_tokens=8, seed=1).tokens[0]) >= 1


def test_models_with_edges_take_their_weights_from_two_files(shipped: dict[str, Model]) -> None:
    """No second copy of the base; what was exchanged is refused; all of it can be saved as one folder."""
    folder = pretrained.PRETRAINED / "dadlm-edges"
    assert not (folder / "model.safetensors").exists()
    save(load("dadlm-edges"), "whole")
    assert same(load("whole"), load("dadlm-edges"), by=0) and load("whole").config.edge == "bilinear"
    convert("dadlm-edges", "converted")
    assert same(load("converted"), load(folder), by=0)
    for part in ("edges", "dadlm"):
        weights_file = pretrained.PRETRAINED / part / "model.safetensors"
        before = weights_file.read_bytes()
        weights_file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        with pytest.raises(CheckpointError, match="checksum"):
            load("dadlm-edges")
        weights_file.write_bytes(before)
    (pretrained.PRETRAINED / "edges" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="does not exist"):
        load("dadlm-edges")


def test_a_folder_of_that_name_is_reached_by_a_path_only(shipped: dict[str, Model]) -> None:
    other = tiny("dadlm", seed=9)
    save(other, "dadlm")
    assert same(load("dadlm"), shipped["dadlm"], by=0.02)
    for path in ("./dadlm", "dadlm/", Path("dadlm"), Path("dadlm").absolute(), str(Path("dadlm").absolute())):
        assert same(load(path), other, by=0)


def test_only_shipped_models_share_a_tokenizer(shipped: dict[str, Model]) -> None:
    """Elsewhere a tokenizer that happens to lie beside a model says nothing of it."""
    shutil.copytree(pretrained.PRETRAINED, "copy")
    assert load("copy/dadlm").tokenizer is None
    save(load("dadlm"), "whole")
    assert load("whole").tokenizer == word_level(WORDS)


def test_a_package_without_models_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "PRETRAINED", tmp_path)
    with pytest.raises(CheckpointError, match=r"carries no model 'bd3lm'.*--model FOLDER.*\./bd3lm"):
        load("bd3lm")


# The script


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A DA-DLM that came from an MDLM, as two finished runs."""
    settings = config("mdlm", tmp_path / "mdlm", steps=7)
    write_state(tmp_path / "mdlm" / "last", asdict(settings), 7)
    model = tiny("dadlm", tokenizer=word_level(WORDS), seed=3)
    save(model, tmp_path / "dadlm" / "best")
    later = replace(config("dadlm", tmp_path / "dadlm", steps=5), init_from=str(tmp_path / "mdlm"))
    write_state(tmp_path / "dadlm" / "best", asdict(later), 4)
    (tmp_path / "text.txt").write_text(" ".join(WORDS[n * n % 28] for n in range(640)), encoding="utf-8")
    return tmp_path / "dadlm"


def write_state(folder: Path, settings: dict, step: int) -> None:
    (folder / "training").mkdir(parents=True)
    state = {"step": step, "best": 1.0, "data": [], "noise": {}, "run": settings}
    (folder / "training" / "state.json").write_text(json.dumps(state), encoding="utf-8")


def test_shipping_writes_a_measured_folder(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    target, text = tmp_path / "pretrained", str(tmp_path / "text.txt")
    for _ in range(2):  # a second time it replaces what is there
        folder = ship.ship(run, "dadlm", text, 4, "cpu", target)
    assert {file.name for file in target.iterdir()} == {"dadlm", "tokenizer.json"}
    names = {"README.md", "config.json", "measured.json", "model.safetensors"}
    assert {file.name for file in folder.iterdir()} == names
    monkeypatch.setattr(pretrained, "PRETRAINED", target)
    exact, stored = load(run), load("dadlm")
    assert stored.tokenizer == exact.tokenizer
    facts = json.loads((folder / "measured.json").read_text(encoding="utf-8"))
    assert [(stage["family"], stage["steps"]) for stage in facts["stages"]] == [("mdlm", 7), ("dadlm", 4)]
    rows, _ = rows_of(exact, text)
    values = [float(score_rows(one, rows.cut(0, 4)).reconstruction.mean()) for one in (exact, stored)]
    assert facts["reconstruction"] == pytest.approx(values, abs=1e-5)
    assert facts["reconstruction_difference"]["mean"] == pytest.approx(values[1] - values[0], abs=1e-5)
    card = (folder / "README.md").read_text(encoding="utf-8")
    for told in (*(f"{value:.4f}" for value in values), "CC BY-SA", "Wikipedia", f"{facts['bytes']:,}"):
        assert told in card
    assert str(tmp_path) not in card + json.dumps(facts)


def test_an_ar_model_has_no_reconstruction(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tiny("ar", tokenizer=word_level(WORDS)), tmp_path / "ar" / "best")
    write_state(tmp_path / "ar" / "best", asdict(config("ar", tmp_path / "ar")), 3)
    folder = ship.ship(tmp_path / "ar", "ar", str(tmp_path / "text.txt"), 2, "cpu", tmp_path / "pretrained")
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "reconstruction" not in card and "≤" not in card and "autoregressive" in card


def test_models_with_another_tokenizer_are_not_shipped_beside(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pretrained").mkdir()
    (tmp_path / "pretrained" / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="another tokenizer"):
        ship.ship(run, "dadlm", str(tmp_path / "text.txt"), 2, "cpu", tmp_path / "pretrained")
    assert [file.name for file in (tmp_path / "pretrained").iterdir()] == ["tokenizer.json"]


# What the repository holds


def present(name: str) -> Path:
    if not (PRETRAINED / name).is_dir():
        pytest.skip(f"this copy carries no {name}")
    return PRETRAINED / name


@pytest.mark.parametrize("name", pretrained.NAMES)
def test_a_shipped_model_is_whole_and_small(name: str) -> None:
    folder = present(name)
    model = load(name)
    assert model.config.family in name.split("-") and model.tokenizer is not None
    assert (model.config.edge == "bilinear") == name.endswith("-edges")
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 11_000_000
    facts = json.loads((folder / "measured.json").read_text(encoding="utf-8"))
    assert facts["name"] == name
    assert facts["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert facts["bytes"] == pretrained.weight_files(folder)[-1].stat().st_size


@pytest.mark.parametrize("name", pretrained.NAMES)
def test_the_card_of_a_shipped_model_is_up_to_date(name: str) -> None:
    folder = present(name)
    facts = json.loads((folder / "measured.json").read_text(encoding="utf-8"))
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert card == ship.card(facts), "run python -m tools.ship --cards"


def test_weights_figures_and_results_stay_small() -> None:
    folders = [PRETRAINED, ROOT / "docs", ROOT / "benchmarks", ROOT / "research"]
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    kept = [file for file in files if "__pycache__" not in file.parts]
    assert sum(file.stat().st_size for file in kept) <= 38 * MIB  # of 44 for the whole tree


def test_the_wheel_carries_every_file_of_the_package(tmp_path: Path) -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel")
    [built] = wheel.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(built) as archive:
        inside = set(archive.namelist())
    package = ROOT / "src" / "dadlm"
    ours = {
        file.relative_to(ROOT / "src").as_posix()
        for file in package.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert ours <= inside, sorted(ours - inside)
    assert not [name for name in inside if re.search(r"__pycache__|\.pyc$", name)]

"""Every example runs as it stands, in an empty folder and without a network."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.serve.running import letter_model, running, settings

import dadlm
from dadlm.serve.service import Service

EXAMPLES = Path(dadlm.__file__).parents[2] / "examples"
Example = Callable[..., str]


@pytest.fixture
def example(tmp_path: Path) -> Example:
    """Runs a script in an empty folder; what it printed."""

    def run(name: str, *words: object) -> str:
        source = str(Path(dadlm.__file__).parents[1])
        env = {**os.environ, "PYTHONPATH": source, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
        command = [sys.executable, str(EXAMPLES / name), *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_train(example: Example, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("It was a dark night, and the cat sat on the mat. " * 400)
    out = example("train.py", "--text", "book.txt", "--length", 0.005, "--out", "models")
    assert len(re.findall(r"models/(?:ar|bd3lm|dadlm): \d steps, validation \d\.\d+", out)) == 3
    model = dadlm.load(tmp_path / "models" / "dadlm")
    assert (model.config.family, model.config.vocab_size) == ("dadlm", model.tokenizer.vocab_size + 1)


def test_train_datasets(example: Example, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    assert "stories: 3 steps" in example("train_datasets.py", "--steps", 3, "--out", "stories")
    assert dadlm.load(tmp_path / "stories").config.context == 64


def test_sample(example: Example) -> None:
    out = example("sample.py", "The city", "--model", "dadlm", "--tokens", 8)
    assert out.count("tokens per forward pass") == out.count("'The city") + out.count('"The city') == 4
    *_, before, last = [line.partition(":")[2] for line in out.splitlines() if line.startswith("  step")]
    assert "·" in before and "·" not in last and last.strip().startswith("The city")


def test_evaluate(example: Example) -> None:
    out = example("evaluate.py", "--rows", 4)
    values = dict(re.findall(r"^(dadlm|bd3lm|difference) +(-?\d+\.\d+) \[", out, re.M))
    ours, theirs, difference = (float(values[name]) for name in ("dadlm", "bd3lm", "difference"))
    assert ours - theirs == pytest.approx(difference, abs=2e-3)


def test_serve_client_starts_a_server(example: Example, tmp_path: Path) -> None:
    pytest.importorskip("openai")
    pytest.importorskip("fastapi")
    out = example("serve_client.py", "--model", "dadlm")
    assert re.search(r"dadlm: '.+', 32 tokens", out) and out.count("|") >= 2


def test_serve_client_takes_a_server(example: Example) -> None:
    pytest.importorskip("openai")
    with running(Service({"letters": letter_model("dadlm")}, settings())) as server:
        assert "letters: " in example("serve_client.py", "--url", f"{server.url}/v1")


def test_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """Cell by cell; what its last line gives is what a notebook would show."""
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    book, names, shown = json.loads((EXAMPLES / "dadlm.ipynb").read_text("utf-8")), dict[str, Any](), []
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"] and cell["execution_count"] is None, "outputs are stripped"
            *body, last = ast.parse("".join(cell["source"])).body
            if not isinstance(last, ast.Expr):
                body, last = [*body, last], None
            exec(compile(ast.Module(body, []), "cell", "exec"), names)
            if last is not None:
                shown.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
    pictures = [one._repr_svg_() for one in shown if isinstance(one, dadlm.StepEvent)]
    assert len(pictures) == 2 and all("<svg" in picture for picture in pictures)
    printed = capsys.readouterr().out
    assert "did you mean top_p?" in printed and printed.count("tokens per forward pass") == 4
    assert dadlm.load(names["folder"] / "edges").config.edge == "bilinear"


def test_the_readme_names_every_example_and_none_is_long() -> None:
    readme = (EXAMPLES / "README.md").read_text("utf-8")
    for file in (file for file in EXAMPLES.iterdir() if file.suffix in (".py", ".ipynb", ".sh")):
        assert f"]({file.name})" in readme, file.name
        assert file.suffix != ".py" or len(file.read_text("utf-8").splitlines()) <= 60

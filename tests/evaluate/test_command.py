"""What all kinds of evaluation share on the command line, and what the package offers to Python."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from tests.commands import Cli, refused
from tests.decode.tiny import tiny
from tests.evaluate import results

import dadlm.evaluate
from dadlm.cli.evaluate import OPTIONS, _table, show
from dadlm.cli.evaluate.common import default_folder, load_models, names_of
from dadlm.errors import ConfigError
from dadlm.evaluate.report import document as doc
from dadlm.model import save
from dadlm.tokens import word_level


def test_every_kind_is_a_function_of_the_package() -> None:
    assert {*OPTIONS, "report"} <= set(dadlm.evaluate.__all__)
    assert all(callable(getattr(dadlm.evaluate, name)) for name in dadlm.evaluate.__all__)


def test_training_does_not_wait_for_what_only_evaluations_need() -> None:
    heavy = "{'transformers', 'matplotlib', 'mauve', 'sklearn', 'faiss', 'rouge_score'}"
    code = f"import sys, dadlm.train; print({heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["runs/a", "runs/b/best"], ["a", "b"]),
        (["one/bd3lm", "two/bd3lm/last", "two/dadlm"], ["one/bd3lm", "two/bd3lm", "two/dadlm"]),
        (["x/one/a", "y/one/a"], ["x/one/a", "y/one/a"]),
        (["runs/a/last", "runs/a/best"], ["last", "best"]),
        (["organisation/model"], ["model"]),
        (["runs/a", "runs/a"], ["a", "a"]),
    ],
)
def test_models_are_called_by_their_folders(folders: list[str], names: list[str]) -> None:
    assert names_of(folders) == names


def test_a_model_is_given_once() -> None:
    with pytest.raises(ConfigError, match="twice"):
        load_models(["runs/a", "runs/a/"], "cpu")


def test_names_are_no_markup(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    result = results.latency()
    result["rows"][0]["model"]["name"] = "[red]x[/red] :smile:"
    result["device"], result["memory_kind"] = "[b]cpu", "[/dim] kind"
    show(result, tmp_path / "latency.json")
    shown = " ".join(capsys.readouterr().out.split())
    assert all(text in shown for text in ("[red]x[/red]", ":smile:", "[b]cpu", "[/dim] kind"))


def test_the_tables_of_a_result_are_shown_without_the_papers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "samples").mkdir()
    for make in (results.reconstruction, results.perplexity, results.judge, results.summarisation):
        result = make()
        show(result, tmp_path / "result.json")
        shown = capsys.readouterr().out
        assert "LM1B" not in shown and "XSum" not in shown and "block size 16, %" not in shown
        assert "beside it: samples" in shown
    show(results.generation((4,)), tmp_path / "generation.json")
    shown = capsys.readouterr().out
    assert "0.881" in shown and "AR, for reference: MAUVE 0.962" in shown  # 0.9 · the paper's 0.979


def test_the_result_says_by_which_command_it_was_made(cli: Cli) -> None:
    save(tiny("bd3lm", tokenizer=word_level([f"w{number}" for number in range(28)])), "a model")
    Path("a text.txt").write_text("w1 w2 w3 w4 " * 20, encoding="utf-8")
    told = cli("evaluate", "perplexity", "--model", "a model", "--data", "a text.txt", "--json").json
    assert told["command"] == "dadlm evaluate perplexity --model 'a model' --data 'a text.txt' --json"
    assert told == json.loads(
        Path("evaluation/perplexity-a-model-a-text/perplexity.json").read_text(encoding="utf-8")
    )
    assert told["model"]["name"] == "a model"
    shown = cli("evaluate", "perplexity", "--model", "a model", "--data", "a text.txt").out
    assert (
        f"Only {told['groups']} documents" in shown
        and "evaluation/perplexity-a-model-a-text/perplexity.json" in shown
    )


@pytest.mark.parametrize("kind", OPTIONS)
def test_common_options_are_checked_at_once(kind: str, cli: Cli) -> None:
    if kind != "judge":  # it draws nothing and has no batches
        assert "64 bits" in cli("evaluate", kind, "--seed", 2**63).err
        assert "batch_size must be at least 1" in cli("evaluate", kind, "--batch-size", 0).err
    assert "--out" in cli("evaluate", kind, "--help").out
    if kind != "latency":  # it needs nothing: it measures the models that ship with the package
        refused(cli("evaluate", kind), "--")


def test_default_folders_are_those_of_their_subjects(cli: Cli) -> None:
    """Two commands of the documentation must not meet in one folder, and the same command resumes."""
    for name in ("one", "two"):
        save(tiny("bd3lm", tokenizer=word_level([f"w{number}" for number in range(28)])), name)
        Path(f"{name}.txt").write_text("w1 w2 w3 w4 " * 20, encoding="utf-8")
    words = ["evaluate", "perplexity", "--count", "1", "--model"]
    ways = [("one", "one.txt"), ("two", "one.txt"), ("one", "two.txt"), ("one", "one.txt", "--draws", "2")]
    for model, data, *more in ways:
        assert cli(*words, model, "--data", data, *more, "--json").code == 0
    names = ["-count-1", "two-one-count-1", "one-two-count-1", "-count-1-draws-2"]
    folders = sorted(place.name for place in Path("evaluation").iterdir())
    assert len(folders) == 4 and all(any(one.endswith(name) for one in folders) for name in names)
    assert cli(*words, "one", "--data", "one.txt", "--batch-size", "3", "--device", "cpu", "--json").code == 0
    assert len(list(Path("evaluation").iterdir())) == 4, "the speed does not matter: it resumes"
    assert len(cli("report", "evaluation", "--json").json["results"]) == 4


def test_folders_of_long_commands_have_names_of_bounded_length() -> None:
    configurations = tuple(f"T={steps}/infill=2,0.5" for steps in range(1, 17))
    a, b = (
        default_folder("generation", OPTIONS["generation"](data="t.txt", configurations=some))
        for some in (configurations, configurations[:-1])
    )
    assert a != b and max(len(a.name), len(b.name)) < 120 and a.name.startswith("generation-bd3lm-dadlm-t-")


def test_latency_and_texts_in_both_modes(cli: Cli, tmp_path: Path) -> None:
    words = [f"w{number}" for number in range(28)]
    save(tiny("bd3lm", tokenizer=word_level(words), causal_context=True), tmp_path / "both")
    (tmp_path / "text.txt").write_text(" ".join(words[n * n % 28] for n in range(256)), encoding="utf-8")
    few = ["--model", "both", "--device", "cpu", "--json", "--mode", "ar"]
    told = cli("evaluate", "latency", *few, "--batch-size", 1, "--steps", 1, "--warmup", 0, "--new-tokens", 4)
    assert [row["model"]["family"] for row in told.json["rows"]] == ["ar"]
    grid = ["--data", "text.txt", "--samples", 2, "--embedder", "none", "--judge-lm", "none"]
    told = cli("evaluate", "generation", *few, *grid)
    assert [model["family"] for model in told.json["models"]] == ["ar"], told.err


def test_a_table_that_is_too_wide_is_turned() -> None:
    """Where it fits so; one that fits as it is stays as it is."""
    places = [doc.Column(str(place), "Nats at place") for place in range(1, 9)]
    rows = [doc.Row([name, "613.86 [491.37, 766.88]", *["3.13"] * 8]) for name in ("bd3lm", "dadlm")]
    table = doc.Table([], "caption", ["Model", "Perplexity", *places], rows)
    wide, narrow = (_lines(table, width) for width in (240, 80))
    assert [line.split()[0] for line in wide if line] == [
        "Model",
        "─" * len(wide[2].strip()),
        "bd3lm",
        "dadlm",
    ]
    assert [line.split()[-1] for line in narrow if "place" in line] == ["3.13"] * 8
    assert sum("613.86 [491.37, 766.88]" in line for line in narrow) == 1 and "bd3lm" in narrow[1]


def _lines(table: doc.Table, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(_table(table, width))
    return [line.rstrip() for line in out.getvalue().splitlines()]

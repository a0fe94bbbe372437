"""Tokens per cycle of drafts: counted by hand, the same in any batch, resumed, shown."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.commands import Cli, refused
from tests.decode.tiny import tiny

import dadlm
from dadlm import generate
from dadlm.cli.evaluate.kinds import Acceptance
from dadlm.errors import ConfigError
from dadlm.evaluate import acceptance, rows_of
from dadlm.evaluate.samples import prompt_set
from dadlm.model import save
from dadlm.tokens.vocabularies import word_level


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    words = [f"w{number}" for number in range(28)]
    (tmp_path / "text.txt").write_text(" ".join(words[at * at % 27] for at in range(1200)))
    size = {"tokenizer": word_level(words), "context": 32}
    save(tiny("ar", **size), tmp_path / "target")
    save(tiny("bd3lm", **size), tmp_path / "draft")
    return tmp_path


def test_a_model_drafts_for_itself_in_the_verifying_pass(folder: Path) -> None:
    words = [f"w{number}" for number in range(28)]
    model = tiny("bd3lm", tokenizer=word_level(words), context=32, causal_context=True)
    rows, data = rows_of(model, str(folder / "text.txt"), cache=str(folder / "cache"), quiet=True)
    how = {"trees": (4,), "samples": 6, "prompt_tokens": 8, "new_tokens": 12, "temperatures": (1.0,)}
    drafts = {"itself": model, "draft": dadlm.load(folder / "draft")}
    by = {
        one_pass: {
            row["draft"]: row
            for row in acceptance(model, drafts, rows, data=data, **how, one_pass=one_pass)["rows"]
        }
        for one_pass in (False, True)
    }
    assert [by[True][name]["one_pass"] for name in drafts] == [True, False]
    assert by[True]["draft"] == by[False]["draft"]
    looked_up = acceptance(model, {"lookup": None}, rows, data=data, **how)["rows"][0]
    assert looked_up["tokens_per_forward"] == looked_up["tokens_per_cycle"]  # nobody denoises
    passes, cycles = (by[True]["itself"][name]["mean"] for name in ("tokens_per_forward", "tokens_per_cycle"))
    assert cycles / (1 + cycles / 12) == pytest.approx(passes, rel=0.1)  # one pass more in each text
    assert (
        by[False]["itself"]["tokens_per_forward"]["mean"]
        < 0.7 * by[False]["itself"]["tokens_per_cycle"]["mean"]
    )


@pytest.mark.parametrize("drawn", [False, True])
def test_tokens_per_cycle_are_counted(folder: Path, drawn: bool) -> None:
    target, draft = dadlm.load(folder / "target"), dadlm.load(folder / "draft")
    rows, data = rows_of(target, str(folder / "text.txt"), cache=str(folder / "cache"), quiet=True)
    how = {"trees": (0, 4), "samples": 6, "prompt_tokens": 8, "new_tokens": 12, "temperatures": (1.0,)}
    how |= {"drawn": drawn}
    drafts = {"draft": draft, "lookup": None}
    result = acceptance(target, drafts, rows, data=data, out=folder / "out", **how)
    assert [(row["draft"], row["tree"], row["drawn"]) for row in result["rows"]] == [
        ("draft", 0, False),
        ("draft", 4, drawn),
        ("lookup", 4, False),
    ]
    prompts = prompt_set({"target": target}, rows, None, 8, 12, 6, 0)
    made = generate(
        target,
        [prompts.prompt(index) for index in prompts.indices],
        seed=[*prompts.indices],
        mode="lossless",
        tree=4,
        drawn=drawn,
        top_p=1.0,
        max_new_tokens=12,
        draft=draft,
    )
    expected = sum(map(len, made.tokens)) / sum(made.cycles)
    assert result["rows"][1]["tokens_per_cycle"]["mean"] == pytest.approx(expected)
    again = acceptance(target, drafts, rows, data=data, out=folder / "out", batch_size=2, **how)
    assert again["rows"] == result["rows"]
    with pytest.raises(ConfigError, match="nothing to measure"):
        acceptance(target, {}, rows)


def test_the_command(cli: Cli, folder: Path) -> None:
    words = ["evaluate", "acceptance", "--model", "target", "--data", "text.txt", "--samples", 4]
    words += ["--prompt-tokens", 8, "--new-tokens", 8, "--trees", 0, 4, "--out", "out"]
    shown = cli(*words, "--drawn", "--draft", "draft", "lookup")
    assert shown.code == 0 and "Tokens per cycle" in shown.out and "tree of 4" in shown.out
    assert "drawn tree of 4" in shown.out and "chain of up to 4" in shown.out
    result = json.loads((folder / "out" / "acceptance.json").read_text())
    assert {row["draft"] for row in result["rows"]} == {"draft", "lookup"}
    refused(cli(*words[:-1], "other", "--draft", "target"), "cannot draft")


def test_a_draft_is_the_target_if_it_is_the_same_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not if it is called the same, and whichever way its path is written."""
    size = {"tokenizer": dadlm.load(folder / "target").tokenizer, "context": 32}
    save(tiny("bd3lm", causal_context=True, **size), folder / "own" / "model")
    save(tiny("bd3lm", **size), folder / "other" / "model")
    given: list[Any] = []
    monkeypatch.chdir(folder)
    monkeypatch.setattr("dadlm.evaluate.acceptance", lambda *words, **how: given.append((words, how)) or {})
    kind = Acceptance(model="own/model", data="text.txt", draft=("./own/model", "other/model", "lookup"))
    kind.measure(folder / "out")
    (target, drafts, *_), how = given[0]
    assert list(drafts) == ["own/model", "other/model", "lookup"] and how["name"] == "own/model"
    assert drafts["own/model"] is target and drafts["other/model"] not in (target, None)
    replace(kind, draft=()).measure(folder / "out")
    assert list(given[1][0][1]) == ["model", "lookup"] and given[1][0][1]["model"] is given[1][0][0]

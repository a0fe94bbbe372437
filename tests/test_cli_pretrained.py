"""Commands that are told no model take one that ships with the package, and say so."""

import json
import math
from pathlib import Path

import pytest
import torch
from tests.commands import Cli, refused
from tests.decode.tiny import tiny
from tests.model.shipped import WORDS, ship_tiny

from dadlm import generate, load, save
from dadlm.model import Model, pretrained
from dadlm.tour import side_by_side

WRITE = ["--max-new-tokens", 8, "--seed", 3]


@pytest.fixture
def shipped(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> dict[str, Model]:
    return ship_tiny(tmp_path_factory.mktemp("package") / "pretrained", monkeypatch)


def test_generate_takes_the_shipped_dadlm(cli: Cli, shipped: dict[str, Model], tmp_path: Path) -> None:
    result = cli("generate", "w1 w2", "--json", *WRITE)
    assert result.code == 0
    assert result.json["texts"] == generate(load("dadlm"), ["w1 w2"], max_new_tokens=8, seed=3).texts
    assert result.err.count("\n") == 1 and "model: dadlm" in result.err and "--model" in result.err
    other = cli("generate", "w1 w2", "--json", "--model", "ar", *WRITE)
    assert other.json["texts"] == generate(load("ar"), ["w1 w2"], max_new_tokens=8, seed=3).texts
    assert "model: ar" in other.err
    # A folder of that name is pointed out.
    save(tiny("dadlm", seed=9), tmp_path / "dadlm")
    assert "./dadlm" in cli("generate", "w1", *WRITE).err
    refused(cli("generate", "w1", "--model", "./dadlm", *WRITE), "no tokenizer")  # it has none, so it is it


def test_without_shipped_models_the_error_says_what_to_do(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretrained, "PRETRAINED", tmp_path / "nothing")
    refused(cli("generate", "w1"), "no model 'dadlm'", "--model FOLDER")


def test_evaluations_take_shipped_models(cli: Cli, shipped: dict[str, Model], tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(" ".join(WORDS[n * n % 28] for n in range(256)), encoding="utf-8")
    told = cli("evaluate", "perplexity", "--data", "text.txt", "--json").json
    assert (told["model"]["name"], told["model"]["family"]) == ("dadlm", "dadlm")
    save(shipped["dadlm"], tmp_path / "dadlm")
    words = ["evaluate", "reconstruction", "--against", "./dadlm", "--data", "text.txt", "--json"]
    told = cli(*words).json  # 8 bits beside float32
    assert [told[side]["name"] for side in ("model", "against")] == [
        "pretrained/dadlm",
        f"{tmp_path.name}/dadlm",
    ]
    assert 0 < abs(told["difference"]["mean"]) < 0.1
    few = ["--batch-size", 1, "--steps", 1, "--warmup", 0, "--new-tokens", 4, "--device", "cpu", "--json"]
    told = cli("evaluate", "latency", *few).json
    assert [row["model"]["name"] for row in told["rows"]] == ["bd3lm", "dadlm"]


def test_side_by_side(
    cli: Cli, shipped: dict[str, Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(side_by_side, "NEW_TOKENS", 20)
    monkeypatch.setattr(side_by_side, "TEXTS", 3)
    words = ["tour", "--prompt", "w1 w2 w3 w4 w5", "--seed", 4, "--out", "demo"]
    result = cli(*words)
    assert result.code == 0, result.err
    told = json.loads((tmp_path / "demo" / "prompt.json").read_text(encoding="utf-8"))
    ways = [(row["system"], row["decoding"]) for row in told["rows"]]
    assert ways == [
        ("AR", "token by token"),
        *((system, way) for system in ("BD3LM", "DA-DLM") for way in ("first-hitting", "T=2", "T=1")),
    ]
    row, prompt = told["rows"][-1], [1, 2, 3, 4, 5]
    how = {"sampler": "random", "steps": 1, "nucleus": "position", "max_new_tokens": 19}  # six whole blocks
    out = generate(load("dadlm"), [prompt] * 3, seed=4, **how)
    assert row["text"] == out.texts[0]
    assert row["tokens"] == pytest.approx(sum(map(len, out.tokens)) / 3)
    assert row["forward_passes"] == pytest.approx(sum(out.forward_passes) / 3)
    assert row["tokens_per_forward"] == pytest.approx(out.mean_tokens_per_forward)
    assert row["judge_perplexity"] == pytest.approx(judged(load("ar"), prompt, out.tokens), rel=1e-4)
    assert 0 < row["seconds"] < 60
    shown = " ".join(result.out.split())
    assert f"{row['judge_perplexity']:.1f}" in shown and "demo/dag.svg" in shown
    assert (tmp_path / "demo" / "dag.svg").read_bytes().startswith(b"<?xml")
    assert (tmp_path / "demo" / "dag.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "tour").write_text("notes")
    refused(cli("tour", "--prompt", "w1"), "tour is a file")
    again = cli(*words, "--json").json  # the same folder once more, and all but the clock is the same
    for one in (*told["rows"], *again["rows"]):
        del one["seconds"]
    assert again == told


def judged(judge: Model, prompt: list[int], texts: list[list[int]]) -> float:
    """Perplexity by reading every prefix anew."""
    nats = []
    with torch.inference_mode():
        for text in texts:
            for place, token in enumerate(text):
                hidden = judge.read(torch.tensor([prompt + text[:place]]))
                nats.append(-float(judge.head.logits(hidden[0, -1]).log_softmax(-1)[token]))
    return math.exp(sum(nats) / len(nats))

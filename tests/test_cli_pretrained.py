"""Commands that are told no model take one that ships with the package, and say so."""

import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from tests.commands import Cli, refused
from tests.decode.tiny import tiny
from tests.model.shipped import WORDS, ship_tiny

from dadlm import generate, load, save
from dadlm.model import Model, pretrained
from dadlm.tour import demo, real_text

WRITE = ["--max-new-tokens", 8, "--seed", 3]


@pytest.fixture
def shipped(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> dict[str, Model]:
    return ship_tiny(tmp_path_factory.mktemp("package") / "pretrained", monkeypatch)


def test_generate_takes_the_shipped_dadlm(cli: Cli, shipped: dict[str, Model], tmp_path: Path) -> None:
    result = cli("generate", "w1 w2", "--json", *WRITE)
    assert result.code == 0
    assert result.err.count("\n") == 1 and "model: dadlm-edges" in result.err and "--model" in result.err
    other = cli("generate", "w1 w2", "--json", "--model", "ar", *WRITE)
    assert other.json["texts"] == generate(load("ar"), ["w1 w2"], max_new_tokens=8, seed=3).texts
    assert "model: ar" in other.err
    # A folder of that name is pointed out.
    save(tiny("dadlm", seed=9), tmp_path / "dadlm")
    assert "./dadlm" in cli("generate", "w1", "--model", "dadlm", *WRITE).err
    refused(cli("generate", "w1", "--model", "./dadlm", *WRITE), "no tokenizer")  # it has none, so it is it


def test_a_start_from_a_shipped_model_is_announced(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "ar").mkdir()
    result = cli("train", "small-bd3lm", "--init-from", "ar", "--data.train", "gone.txt", "--out", "run")
    assert result.code != 0 and "gone.txt" in result.err
    assert "starting from ar, which ships with dadlm; the folder ar that lies here is ./ar" in result.err


def test_without_shipped_models_the_error_says_what_to_do(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretrained, "PRETRAINED", tmp_path / "nothing")
    refused(cli("generate", "w1"), "no model 'dadlm-edges'", "--model FOLDER")


def test_evaluations_take_shipped_models(cli: Cli, shipped: dict[str, Model], tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(" ".join(WORDS[n * n % 28] for n in range(256)), encoding="utf-8")
    told = cli("evaluate", "perplexity", "--data", "text.txt", "--json").json
    assert (told["model"]["name"], told["model"]["family"]) == ("dadlm", "dadlm")
    save(shipped["dadlm"], tmp_path / "dadlm")
    words = ["evaluate", "reconstruction", "--model", "dadlm", "--against", "./dadlm"]
    words += ["--data", "text.txt", "--json"]
    told = cli(*words).json  # 8 bits beside float32
    assert [told[side]["name"] for side in ("model", "against")] == [
        "pretrained/dadlm",
        f"{tmp_path.name}/dadlm",
    ]
    assert 0 < abs(told["difference"]["mean"]) < 0.1
    few = ["--batch-size", 1, "--steps", 1, "--warmup", 0, "--new-tokens", 4, "--device", "cpu", "--json"]
    told = cli("evaluate", "latency", *few).json
    assert [row["model"]["name"] for row in told["rows"]] == ["bd3lm", "dadlm"]


def test_the_demo(
    cli: Cli, shipped: dict[str, Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(real_text, "NEW_TOKENS", 20)
    monkeypatch.setattr(real_text, "TEXTS", 3)
    monkeypatch.setattr(demo, "_BLOCKS", 200)
    words = ["demo", "--prompt", "w1 w2 w3 w4 w5", "--seed", 4]
    result = cli(*words)
    assert result.code == 0, result.err
    told = json.loads((tmp_path / "demo" / "demo.json").read_text(encoding="utf-8"))
    valid, shown = told["idea"]["valid"], " ".join(result.out.split())
    assert valid["DA-DLM"] > 0.7 and valid["BD3LM"] < 0.08  # the package's own models of the tour
    assert f"{valid['DA-DLM']:.1%}" in shown and "▸" in shown and "dadlm serve" in shown
    animation = (tmp_path / "demo" / "tour.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(animation).tag.endswith("svg") and len(animation) < 50_000
    assert f"{valid['DA-DLM']:.1%} of the phrases" in animation
    assert (tmp_path / "demo" / "dag.png").read_bytes().startswith(b"\x89PNG")
    rows = {row["system"]: row for row in told["real_text"]}
    assert list(rows) == list(real_text.SYSTEMS) and rows["AR"]["steps"] is None
    row, prompt = rows["DA-DLM"], [1, 2, 3, 4, 5]
    how = {"sampler": "random", "steps": 1, "nucleus": "position", "max_new_tokens": 19}  # six whole blocks
    out = generate(load("dadlm"), [prompt] * 3, seed=4, **how)
    assert row["text"] == out.texts[0] and row["steps"] == 1
    assert (row["tokens"], row["forward_passes"]) == (sum(map(len, out.tokens)), sum(out.forward_passes))
    assert row["judge_perplexity"] == pytest.approx(judged(load("ar"), prompt, out.tokens), rel=1e-4)
    assert f"{row['judge_perplexity']:,.0f}" in shown
    lossless = told["lossless"]
    assert lossless["same"] and lossless["cycles"] <= lossless["tokens"] and "the same text takes" in shown
    (tmp_path / "notes").write_text("notes")
    refused(cli("demo", "--out", "notes"), "notes is a file")
    again = cli(*words, "--json").json  # the same folder once more, and all but the clock is the same
    for one in (*told["real_text"], *again["real_text"]):
        del one["seconds"]
    assert again == told


def test_models_lists_what_ships(cli: Cli, shipped: dict[str, Model]) -> None:
    found = {one["name"]: one for one in cli("models", "--json").json}
    assert tuple(found) == (*pretrained.NAMES, *pretrained.PACKAGED)
    one = found["dadlm-edges"]
    assert (one["family"], one["block_size"], one["candidates"], one["edge_rank"]) == ("dadlm", 4, 3, 4)
    assert one["parameters"] == sum(p.numel() for p in shipped["dadlm-edges"].parameters())
    files = [pretrained.PRETRAINED / part / "model.safetensors" for part in ("dadlm", "edges")]
    assert one["bytes"] == sum(file.stat().st_size for file in files)
    told = cli("models")
    assert all(name in told.out for name in pretrained.NAMES) and told.out.endswith("default: dadlm-edges\n")


def test_generate_decodes_as_suits_the_model(cli: Cli, shipped: dict[str, Model]) -> None:
    """Half as many dilated steps as tokens, DA-DLM's nucleus, where nothing is named; what is named wins."""
    ask = ["generate", "w1 w2", "--json", *WRITE]
    for words, how in (
        ([], {"sampler": "dilated", "steps": 2}),
        (["--model", "dadlm"], {"sampler": "dilated", "steps": 2, "nucleus": "position"}),
        (["--model", "bd3lm"], {"sampler": "dilated", "steps": 2}),
        (["--steps", 1], {"sampler": "dilated", "steps": 1}),
        (["--sampler", "random"], {"sampler": "random", "steps": 2}),
        (["--sampler", "first-hitting", "--nucleus=standard"], {}),
        (
            ["--sampler", "confidence", "--threshold", 0.5],
            {"sampler": "confidence", "threshold": 0.5},
        ),
        (["--model", "ar"], {}),
    ):
        model = load(words[1] if "--model" in words else "dadlm-edges")
        expected = generate(model, ["w1 w2"], max_new_tokens=8, seed=3, **how)
        found = cli(*ask, *words).json
        assert (found["texts"], found["forward_passes"]) == (expected.texts, expected.forward_passes), words


def test_options_without_effect_are_refused_or_told(cli: Cli, shipped: dict[str, Model]) -> None:
    refused(cli("generate", "w1", "--threshold", 0.5), "threshold belongs to the confidence sampler")
    refused(cli("generate", "w1", "--bound", 3, "--steps", 2), "bound belongs to the entropy sampler")
    refused(cli("generate", "w1", "--model", "dadlm", "--shortlist", 4), "no token edges")
    ask = ["generate", "w1", *WRITE]
    assert "--nucleus changes nothing" in cli(*ask, "--model", "ar", "--nucleus", "position").err
    assert "--nucleus changes nothing" in cli(*ask, "--model", "bd3lm", "--nucleus", "position").err
    assert "--infill changes nothing" in cli(*ask, "--model", "ar", "--infill", 2, 0.5).err
    assert "--top-p changes nothing" in cli(*ask, "--path", "viterbi", "--top-p", 0.5).err
    assert "changes nothing" not in cli(*ask, "--nucleus", "position").err
    assert "changes nothing" not in cli("generate", "nucleus", "--model", "ar", *WRITE).err  # a prompt


def judged(judge: Model, prompt: list[int], texts: list[list[int]]) -> float:
    """Perplexity by reading every prefix anew."""
    nats = []
    with torch.inference_mode():
        for text in texts:
            for place, token in enumerate(text):
                hidden = judge.read(torch.tensor([prompt + text[:place]]))
                nats.append(-float(judge.head.logits(hidden[0, -1]).log_softmax(-1)[token]))
    return math.exp(sum(nats) / len(nats))


def test_lossless_texts_at_the_command_line(cli: Cli, shipped: dict[str, Model]) -> None:
    """The shipped AR model is drafted for by the shipped model with edges, if no other is named."""
    words = ["generate", "w1 w2 w3", "--model", "ar", "--max-new-tokens", 12, "--seed", 3, "--json"]
    alone = cli(*words, "--mode", "ar").json
    for more in ([], ["--draft", "lookup"], ["--draft", "bd3lm", "--tree", 4]):
        result = cli(*words, "--mode", "lossless", *more)
        assert result.json["texts"] == alone["texts"] and result.json["tokens_per_cycle"][0] >= 1
        assert ("bd3lm-edges" in result.err) == (not more)
    assert "cycles" not in alone
    refused(cli(*words, "--draft", "bd3lm"), "draft belongs to mode lossless")
    refused(cli(*words, "--mode", "ar", "--tree", 3), "tree belongs to mode lossless")

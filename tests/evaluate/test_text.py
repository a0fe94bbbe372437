"""Text to rows: the rows that training validates on, shorter ones where the text is short, clear refusals."""

import json
from pathlib import Path

import pytest
import torch
from tests.model.tiny import tiny_model

from dadlm.errors import ConfigError, DataError
from dadlm.evaluate.text import about, check_length, documents_of, pick, rows_of
from dadlm.model import Model
from dadlm.tokens import Rows, word_level
from dadlm.train.config import DataConfig
from dadlm.train.data import load_rows

WORDS = ["one", "two", "three", "four", "five"]


def model_of(family: str = "bd3lm") -> Model:
    tokenizer = word_level(WORDS)
    ids = {"vocab_size": tokenizer.vocab_size + 1, "eot_id": tokenizer.eot_id}
    model = tiny_model(family, context=8, block_size=4, **ids)
    model.tokenizer = tokenizer
    return model


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_rows_are_those_training_validates_on(folder: Path):
    (folder / "valid.jsonl").write_text(
        "\n".join(json.dumps({"body": " ".join(WORDS[:size])}) for size in (5, 3, 4, 5)), encoding="utf-8"
    )
    model = model_of()
    assert model.tokenizer is not None
    config = DataConfig(train="valid.jsonl", valid="valid.jsonl", text_field="body")
    _, valid = load_rows(config, model.tokenizer, 8)
    rows, data = rows_of(model, "valid.jsonl", text_field="body")
    eot = model.config.eot_id
    assert rows.batch([0, 1]).tolist() == [[0, 1, 2, 3, 4, eot, 0, 1], [2, eot, 0, 1, 2, 3, eot, 0]]
    assert rows.fingerprint() == valid.fingerprint()
    assert (data["source"], data["rows"], data["row_length"]) == ("valid.jsonl", 2, 8)


@pytest.mark.parametrize(
    ("family", "words", "length", "expected"),
    [
        ("bd3lm", 7, None, (1, 8)),
        ("bd3lm", 6, None, (1, 4)),  # seven tokens with the end of text: one whole block
        ("dadlm", 4, None, (1, 4)),
        ("mdlm", 6, None, (1, 7)),
        ("ar", 1, None, (1, 2)),
        ("bd3lm", 24, 4, (6, 4)),
        ("mdlm", 24, 5, (5, 5)),
        ("ar", 24, 8, (3, 8)),
    ],
)
def test_rows_have_the_wanted_length_or_what_a_short_text_has(family, words, length, expected, folder: Path):
    (folder / "a.txt").write_text(" ".join(["two"] * words), encoding="utf-8")
    rows, data = rows_of(model_of(family), "a.txt", length=length)
    assert (len(rows), rows.context) == (data["rows"], data["row_length"]) == expected


@pytest.mark.parametrize(
    ("family", "length", "told"),
    [
        ("bd3lm", 6, "2 to 8 and a multiple of its block size 4"),
        ("dadlm", 12, "2 to 8"),
        ("mdlm", 9, "2 to 8; choose it with --length"),
        ("ar", 1, "2 to 8"),
        ("bd3lm", 0, "2 to 8"),
    ],
)
def test_lengths_that_do_not_fit(family, length, told):
    with pytest.raises(ConfigError, match=f"rows of {length} tokens do not fit this {family} model.*{told}"):
        check_length(model_of(family), length)


def test_what_cannot_be_read(folder: Path):
    model = model_of()
    (folder / "a.txt").write_text("one six", encoding="utf-8")
    with pytest.raises(DataError, match="'six' is not among"):
        rows_of(model, "a.txt")
    model.tokenizer = None
    with pytest.raises(ConfigError, match=r"no tokenizer.*tokenizer\.json"):
        rows_of(model, "a.txt")


def test_a_row_is_of_the_document_it_begins_in():
    ids = [1, 1, 9, 1, 1, 1, 1, 9, 1, 9, 9, 1, 1, 1, 1, 1, 1, 1, 1, 9]
    assert documents_of(Rows.from_ids(ids, 4), 9).tolist() == [0, 1, 2, 4, 4]


def test_one_long_document_falls_into_runs_of_rows():
    ids = [1] * 4 * 30
    for ends in (False, True):  # an end of text in the last row ends the only document
        ids[-1] = 9 if ends else 1
        groups = documents_of(Rows.from_ids(ids, 4), 9)
        assert groups.unique(return_counts=True)[1].tolist() == [5] * 6 and groups.tolist() == sorted(groups)
    assert documents_of(Rows.from_ids(ids[:4], 4), 9).tolist() == [0]


def test_rows_are_picked_from_all_over_the_text():
    rows = Rows.from_ids(list(range(400)), 4)
    assert pick(rows, None, 0) == pick(rows, 100, 1) == pick(rows, 999, 2) == list(range(100))
    hits = torch.zeros(100)
    for seed in range(300):
        chosen = pick(rows, 20, seed)
        assert chosen == sorted(set(chosen)) == pick(rows, 20, seed) and len(chosen) == 20
        hits[chosen] += 1
    # Each row 60 times in the mean, standard deviation 6.9.
    assert hits.min() > 30 and hits.max() < 90 and abs(float(hits[:50].mean()) - 60) < 4
    with pytest.raises(ConfigError, match="count must be at least 1"):
        pick(rows, 0, 0)


def test_the_fingerprint_is_of_the_rows_used_and_of_all_of_them():
    ids = torch.arange(400)
    before = about(Rows.from_ids(ids, 4), "a", [1, 5])
    assert (before["rows"], before["row_length"], before["source"]) == (100, 4, "a")
    for row, other in ((1, True), (5, True), (2, False), (99, False)):
        edited = ids.clone()
        edited[4 * row + 2] += 1
        rows = Rows.from_ids(edited, 4)
        assert (about(rows, "a", [1, 5]) != before) == other
        assert about(rows, "a") != about(Rows.from_ids(ids, 4), "a")

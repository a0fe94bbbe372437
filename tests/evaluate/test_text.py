"""Text to rows: the rows that training validates on, shorter ones where the text is short, clear refusals."""

import json
from pathlib import Path

import pytest
import torch

from dadlm.errors import ConfigError, DataError
from dadlm.evaluate.text import check_length, rows_of, take
from dadlm.model import Model, ModelConfig
from dadlm.tokens import Rows, Tokenizer, word_level
from dadlm.tour import run as tour
from dadlm.tour.language import make_language
from dadlm.train.config import DataConfig
from dadlm.train.data import load_rows

WORDS = ["one", "two", "three", "four", "five"]


def model_of(family: str = "bd3lm", tokenizer: Tokenizer | None = None, **changes) -> Model:
    tokenizer = tokenizer or word_level(WORDS)
    shape = {"context": 8, "block_size": 4, "layers": 1, "width": 16, "heads": 2} | changes
    return Model(
        ModelConfig(
            family=family,  # type: ignore[arg-type]
            vocab_size=tokenizer.vocab_size + 1,
            eot_id=tokenizer.eot_id,
            **shape,
        ),
        tokenizer,
    )


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
    data = DataConfig(train="valid.jsonl", valid="valid.jsonl", text_field="body")
    _, valid = load_rows(data, model.tokenizer, 8)
    rows, about = rows_of(model, "valid.jsonl", text_field="body")
    eot = model.config.eot_id
    assert rows.batch([0, 1]).tolist() == [[0, 1, 2, 3, 4, eot, 0, 1], [2, eot, 0, 1, 2, 3, eot, 0]]
    assert rows.fingerprint() == valid.fingerprint()
    assert about["fingerprint"] == rows.fingerprint()[:16]
    assert (about["source"], about["rows"], about["row_length"]) == ("valid.jsonl", 2, 8)
    letters = sum(len(" ".join(WORDS[:size])) for size in (5, 3, 4, 5))
    assert about["bytes_per_token"] == letters / 21  # 17 words, four ends of text


def test_the_tours_text_has_the_tokens_of_its_validation_rows(folder: Path):
    language = make_language(5)
    tour._write_text(folder / "valid.txt", language, 5)
    rows, about = rows_of(model_of(tokenizer=language.tokenizer, context=32), "valid.txt")
    assert torch.equal(rows.batch(range(256)), language.rows(256, tour.BLOCKS, 5 + 2))
    assert about["rows"] == len(rows) == 256


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
    rows, about = rows_of(model_of(family), "a.txt", length=length)
    assert (len(rows), rows.context) == (about["rows"], about["row_length"]) == expected


def test_a_text_of_less_than_a_block_is_refused(folder: Path):
    (folder / "a.txt").write_text("one two", encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.txt has 3 tokens where a row needs at least 4"):
        rows_of(model_of(), "a.txt")


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
    with pytest.raises(ConfigError, match="--data FILE"):
        rows_of(model, "")
    with pytest.raises(DataError, match=r"nowhere\.txt"):
        rows_of(model, "nowhere.txt")
    (folder / "a.txt").write_text("one six", encoding="utf-8")
    with pytest.raises(DataError, match="'six' is not among"):
        rows_of(model, "a.txt")
    model.tokenizer = None
    with pytest.raises(ConfigError, match=r"no tokenizer.*tokenizer\.json"):
        rows_of(model, "a.txt")


def test_take_counts_rows():
    rows = Rows.from_ids(list(range(12)), 4)
    assert [take(rows, count) for count in (None, 1, 3, 9)] == [3, 1, 3, 3]
    with pytest.raises(ConfigError, match="count must be at least 1, got 0"):
        take(rows, 0)

"""Several processes give what one gives."""

from contextlib import suppress
from copy import deepcopy

import psutil
import pytest
from tests.tokens.conftest import write_jsonl
from tokenizers import Regex, pre_tokenizers

from dadlm.errors import DataError
from dadlm.tokens import EOT, encoding, packing, prepare, word_level


@pytest.fixture
def source(tmp_path, prose):
    text = prose(40_000)
    texts = [text[at : at + at % 700] for at in range(0, 40_000, 300)] + [f"a {EOT} b", "🙂", prose(70_000)]
    return write_jsonl(tmp_path / "text.jsonl", texts)


def helpers() -> list[psutil.Process]:
    """Those of ours that work; what other tests have left may be dead by the time it is looked at."""
    found = []
    for process in psutil.Process().children():
        with suppress(psutil.Error):
            found += [process] if "worker.py" in " ".join(process.cmdline()) else []
    return found


def test_result_does_not_depend_on_their_number(source, bpe, tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "_BATCH", 5_000)
    made = []
    for workers in (1, 2, 3):
        shards = prepare(
            source, bpe, tmp_path / str(workers), workers=workers, shard_tokens=3000, progress=False
        )
        made.append({file.name: file.read_bytes() for file in shards.folder.iterdir()})
    assert made[0] == made[1] == made[2]
    assert len(made[0]) > 10
    assert helpers() == []


def test_text_that_cannot_be_encoded_is_named_as_by_one_process(tmp_path):
    file, words = write_jsonl(tmp_path / "a.jsonl", ["one two", "one three"]), word_level(["one", "two"])
    messages = []
    for workers in (1, 2):
        with pytest.raises(DataError) as error:
            prepare(file, words, tmp_path, workers=workers, progress=False)
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert "'three' is not among the 2 words" in messages[0]
    assert helpers() == []


def test_a_panic_of_the_library_is_told_as_by_one_process(bpe, tmp_path):
    """An expression that takes too long, as the library sees it."""
    hostile = deepcopy(bpe)
    hostile._inner.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    file = write_jsonl(tmp_path / "a.jsonl", ["a" * 40 + "!"])
    for workers in (1, 2):
        with pytest.raises(DataError, match=r"cannot encode this text: .*retry-limit"):
            prepare(file, hostile, tmp_path, workers=workers, progress=False)


def test_worker_that_dies_is_reported(source, bpe, tmp_path, monkeypatch):
    start = encoding._start

    def start_dead(file, stack):
        process = start(file, stack)
        process.kill()
        return process

    monkeypatch.setattr(encoding, "_start", start_dead)
    with pytest.raises(DataError, match=r"has died \(exit code -9\).*run again"):
        prepare(source, bpe, tmp_path, workers=2, progress=False)
    assert helpers() == []
    with pytest.raises(DataError, match="workers must be at least 1, got 0"):
        prepare(source, bpe, tmp_path, workers=0)

"""A preparation that is killed goes on, whatever the moment, and ends as an undisturbed one does."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tokens import killing
from tests.tokens.conftest import write_jsonl

import dadlm
from dadlm.errors import DataError
from dadlm.tokens import Tokenizer, packing, prepare, verify
from dadlm.tokens.writer import JOURNAL


@pytest.fixture
def source(tmp_path, prose):
    """Two files: documents from empty to some longer than a shard."""
    text = prose(60_000)
    folder = tmp_path / "text"
    folder.mkdir()
    for n in range(2):
        texts = [text[at : at + (at * 7 + n * 31) % 900] for at in range(0, 30_000, 600)]
        write_jsonl(folder / f"{n}.jsonl", texts)
    return folder


@pytest.fixture
def settings(source, bpe, tmp_path):
    bpe.save(tmp_path / "tokenizer")
    return {"source": str(source), "tokenizer": str(tmp_path / "tokenizer"), "shard_tokens": 2000}


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def undisturbed(settings, folder: Path) -> dict[str, bytes]:
    shards = prepare(
        **(settings | {"tokenizer": Tokenizer.load(settings["tokenizer"]), "folder": folder, "workers": 1}),
        progress=False,
    )
    assert len(shards.arrays) >= 4
    return content(shards.folder)


def torment(what: str, settings, extra) -> dict:
    paths = [str(Path(dadlm.__file__).parents[1]), str(Path(__file__).parents[2])]
    run = subprocess.run(
        [sys.executable, killing.__file__, what, json.dumps(settings), json.dumps(extra)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TOKENIZERS_PARALLELISM": "false"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def finished(root: Path) -> list[Path]:
    """The folders made below `root`, one below each of its own; nothing else may be left there."""
    found = []
    for folder in root.iterdir():
        (one,) = folder.iterdir()
        verify(one)
        found.append(one)
    return found


def test_killed_before_every_operation_on_a_file(settings, tmp_path):
    expected = undisturbed(settings, tmp_path / "good")
    result = torment("every", settings | {"folder": str(tmp_path / "out")}, {})
    assert result["operations"] > 20
    folders = finished(tmp_path / "out")
    assert len(folders) == result["operations"] + 1
    for folder in folders:
        made = content(folder)
        for leftover in (JOURNAL, "lock"):  # of a kill between the last two operations
            made.pop(leftover, None)
        assert made == expected


def random_kills(settings, tmp_path, kills, seconds, workers):
    expected = undisturbed(settings, tmp_path / "good")
    extra = {"kills": kills, "seconds": seconds}
    result = torment("random", settings | {"folder": str(tmp_path / "out"), "workers": workers}, extra)
    assert (result["kills"], result["orphans"]) == (kills, 0)
    for folder in finished(tmp_path / "out"):
        assert {name: data for name, data in content(folder).items() if name in expected} == expected


def test_killed_at_random_moments(settings, tmp_path):
    random_kills(settings, tmp_path, 4, 0.2, workers=2)


@pytest.mark.acceptance
@pytest.mark.parametrize("workers", [1, 3])
def test_killed_at_thirty_random_moments(settings, source, prose, tmp_path, workers):
    text = prose(400_000)
    places = range(0, 4_000_000, 3_000)
    write_jsonl(source / "2.jsonl", (text[at % 390_000 :][:3_000] for at in places))
    random_kills(settings | {"shard_tokens": 50_000}, tmp_path, 30, 1.0, workers)


def interrupt(settings, folder, monkeypatch, texts: int) -> Path:
    """Stop a preparation after so many texts; the unfinished folder."""
    encode, seen = Tokenizer.encode_batch, 0

    def stop(self, batch):
        nonlocal seen
        seen += len(batch)
        if seen > texts:
            raise KeyboardInterrupt
        return encode(self, batch)

    tokenizer = Tokenizer.load(settings["tokenizer"])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(packing, "_BATCH", 1)
        patch.setattr(Tokenizer, "encode_batch", stop)
        prepare(**(settings | {"tokenizer": tokenizer, "folder": folder}), progress=False)
    (partial,) = folder.iterdir()
    return partial


def test_only_what_is_missing_is_tokenised_again(settings, tmp_path, monkeypatch):
    partial = interrupt(settings, tmp_path / "out", monkeypatch, 80)
    lines = (partial / JOURNAL).read_text().splitlines()
    assert len(lines) > 3
    encode, seen = Tokenizer.encode_batch, []
    monkeypatch.setattr(
        Tokenizer, "encode_batch", lambda self, texts: [seen.extend(texts), encode(self, texts)][1]
    )
    expected = undisturbed(settings, tmp_path / "good")
    everything = len(seen)
    assert undisturbed(settings, tmp_path / "out") == expected
    assert len(seen) - everything < everything / 2


def test_journal_cut_anywhere(settings, tmp_path, monkeypatch):
    """Whatever part of the journal reached the disk, and whatever happened to a shard in it."""
    expected = undisturbed(settings, tmp_path / "good")
    partial = interrupt(settings, tmp_path / "one", monkeypatch, 80)
    journal = (partial / JOURNAL).read_bytes()
    borders = [at + 1 for at, byte in enumerate(journal) if byte == ord("\n")]
    for cut in sorted({0, 1, *borders, *(b - 1 for b in borders), *(b - 30 for b in borders)}):
        shutil.copytree(partial, tmp_path / f"cut{cut}" / partial.name)
        (tmp_path / f"cut{cut}" / partial.name / JOURNAL).write_bytes(journal[:cut])
        assert undisturbed(settings, tmp_path / f"cut{cut}") == expected
    shutil.copytree(partial, tmp_path / "flip" / partial.name)
    shard = tmp_path / "flip" / partial.name / "shard-00001.bin"
    shard.write_bytes(b"\0\0" + shard.read_bytes()[2:])
    assert undisturbed(settings, tmp_path / "flip") == expected
    (tmp_path / "one" / partial.name / "shard-00002.bin").unlink()
    assert undisturbed(settings, tmp_path / "one") == expected


def test_error_keeps_finished_shards(settings, source, tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "_BATCH", 1)
    with (source / "1.jsonl").open("a") as file:
        file.write("{broken\n")
    with pytest.raises(DataError, match="not valid JSON"):
        undisturbed(settings, tmp_path / "out")
    (partial,) = (tmp_path / "out").iterdir()
    assert len((partial / JOURNAL).read_text().splitlines()) >= 4

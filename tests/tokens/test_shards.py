"""Shards: what is in them, how folders are told apart, and what is left after an accident."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from dadlm.errors import DataError
from dadlm.tokens import Rows, Shards, Tokenizer, describe, packing, prepare, train_bpe, word_level, writer

DOCUMENTS = ["one red river", "the bridge\nstops", "slow"]


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "text.jsonl"
    file.write_text("".join(json.dumps({"text": text, "title": "x"}) + "\n" for text in DOCUMENTS))
    return file


@pytest.fixture
def make(source, bpe, tmp_path):
    """prepare() with everything filled in but what a test changes."""

    def call(**changes):
        settings = {"source": source, "tokenizer": bpe, "folder": tmp_path / "out", "progress": False}
        return prepare(**(settings | changes))

    return call


def stream(shards) -> list[int]:
    return np.concatenate(shards.arrays).tolist()


def test_each_document_is_followed_by_end_of_text(make, bpe):
    shards = make()
    assert stream(shards) == [i for text in DOCUMENTS for i in [*bpe.encode(text), bpe.eot_id]]
    assert (shards.documents, shards.tokens) == (3, len(stream(shards)))
    assert shards.index.text_bytes == sum(map(len, DOCUMENTS))
    assert Tokenizer.load(shards.folder) == bpe
    assert shards.index.identity["source"] == describe(shards.index.identity["source"][0]["file"])


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_shards_are_bounded_and_in_order(make, size):
    shards = make(shard_tokens=size)
    assert stream(shards) == stream(make())
    assert all(len(array) == size for array in shards.arrays[:-1])
    assert 0 < len(shards.arrays[-1]) <= size


def test_long_document_in_pieces_has_the_ids_of_the_whole(make, bpe, prose, tmp_path):
    text = prose(300_000)
    (tmp_path / "long.txt").write_text(text)
    assert stream(make(source=tmp_path / "long.txt")) == [*bpe.encode(text), bpe.eot_id]


def test_width_of_ids_follows_the_vocabulary(make, tmp_path):
    (tmp_path / "w.txt").write_text("65535 0 65536")
    narrow = word_level([str(i) for i in range(65_535)])
    wide = word_level([str(i) for i in range(65_537)])
    (tmp_path / "n.txt").write_text("65534 0")
    assert make(source=tmp_path / "n.txt", tokenizer=narrow).arrays[0].dtype == np.uint16
    shards = make(source=tmp_path / "w.txt", tokenizer=wide)
    assert shards.arrays[0].dtype == np.uint32
    assert stream(shards) == [65535, 0, 65536, 65537]


def test_documents_limit(make):
    assert make(documents=2).documents == 2
    assert stream(make(documents=2)) == stream(make())[: make(documents=2).tokens]
    with pytest.raises(DataError, match="at least 1"):
        make(documents=0)


def test_no_two_settings_share_a_folder(make, source, tmp_path, prose):
    other = train_bpe([prose(5_000)], 300, show_progress=False)
    copy = tmp_path / "sub" / source.name
    copy.parent.mkdir()
    copy.write_text(source.read_text())
    changes = (
        {},
        {"tokenizer": other},
        {"text_field": "title"},
        {"documents": 1},
        {"shard_tokens": 9},
        {"source": copy},
    )
    folders = [make(**change).folder for change in changes]
    source.write_text(source.read_text().replace("river", "RIVER"))  # the same size
    folders.append(make().folder)
    assert len(set(folders)) == len(folders)
    assert all(
        folder.name.startswith("text-") and len(folder.name) == len("text-") + 16 for folder in folders
    )


def test_finished_folder_is_reused_without_tokenising(make, monkeypatch):
    first = make()
    monkeypatch.setattr(Tokenizer, "encode_batch", lambda *_: pytest.fail("tokenised again"))
    assert stream(make()) == stream(first)
    with pytest.raises(pytest.fail.Exception):  # the trap does work
        make(documents=1)


def test_crash_leaves_nothing_and_the_next_run_works(make, source, tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "_BATCH", 1)
    monkeypatch.setattr(writer, "_create", lambda path: path.open("wb", buffering=0))
    encode = Tokenizer.encode_batch

    def crash(self, texts):
        if texts == DOCUMENTS[1:2]:
            (temporary,) = (tmp_path / "out").iterdir()
            assert (temporary / "shard-00000.bin").stat().st_size > 0  # in the middle indeed
            raise KeyboardInterrupt
        return encode(self, texts)

    with monkeypatch.context() as patch:
        patch.setattr(Tokenizer, "encode_batch", crash)
        with pytest.raises(KeyboardInterrupt):
            make()
    assert list((tmp_path / "out").iterdir()) == []
    assert make().documents == 3


def test_killed_run_leaves_no_index_and_is_cleared_away_after_a_day(make, tmp_path):
    name = make().folder.name
    old, young = (tmp_path / "out" / f".{name}.{age}" for age in ("old", "young"))
    for folder in (old, young):
        folder.mkdir()
        (folder / "shard-00000.bin").write_bytes(b"half")
    os.utime(old / "shard-00000.bin", (0, 0))
    os.utime(old, (0, 0))
    (tmp_path / "out" / name).rename(tmp_path / "gone")
    assert make().documents == 3
    assert not old.exists()
    assert young.exists()  # it may belong to a run that is alive


def test_two_processes_at_once(make, monkeypatch):
    """Another process finishes the same folder while this one works."""
    save, nested = Tokenizer.save, []

    def save_and_be_overtaken(self, folder):
        if not nested:
            nested.append(True)
            nested.append(make())
        return save(self, folder)

    monkeypatch.setattr(Tokenizer, "save", save_and_be_overtaken)
    shards = make()
    assert shards.folder == nested[1].folder
    assert [p.name for p in shards.folder.parent.iterdir()] == [shards.folder.name]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_disk_full_is_said_and_leaves_nothing(make, tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "_create", lambda path: open("/dev/full", "wb"))  # noqa: SIM115
    with pytest.raises(DataError, match="disk full"):
        make()
    assert list((tmp_path / "out").iterdir()) == []


def test_folder_that_cannot_be_made(make, source):
    with pytest.raises(DataError, match="cannot write to"):
        make(folder=source / "below-a-file")


def test_bad_text_leaves_nothing(make, source, tmp_path):
    source.write_bytes(source.read_bytes() + b'{"text": "\xe9"}')
    with pytest.raises(DataError, match="line 4, byte offset"):
        make()
    assert list((tmp_path / "out").iterdir()) == []


def test_damage_is_found_on_opening(make):
    folder = make(shard_tokens=5).folder
    shard, index = folder / "shard-00001.bin", folder / "index.json"
    good, text = shard.read_bytes(), index.read_text()
    shard.write_bytes(good[:-2])
    with pytest.raises(DataError, match=r"shard-00001\.bin has 8 bytes where the index says 10"):
        make(shard_tokens=5)
    shard.unlink()
    with pytest.raises(DataError, match=r"shard-00001\.bin is missing"):
        Shards.open(folder)
    shard.write_bytes(good)
    damaged = {
        "version": (text.replace('"version": 1', '"version": 99'), "version 99, expected 1"),
        "cut": (text[:-30], "damaged"),
        "sum": (text.replace('"tokens": ', '"tokens": 1'), "do not add up"),
        "key": (text.replace('"eot_id"', '"eot"'), "damaged"),
    }
    for content, message in damaged.values():
        index.write_text(content)
        with pytest.raises(DataError, match=message):
            Shards.open(folder)
    index.unlink()
    with pytest.raises(DataError, match=r"holds no index\.json"):
        make(shard_tokens=5)
    index.write_text(text)
    assert Shards.open(folder).documents == 3


def test_progress_goes_to_standard_error(make, capsys):
    make(progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "tokens" in err


def test_memory_is_constant(bpe, prose, tmp_path):
    """A process that has prepared 2 MB needs no more memory for 8 MB as one document, nor as many."""
    unit = prose(50_000)
    bpe.save(tmp_path)
    for name, times in (("small", 40), ("large", 160)):
        (tmp_path / f"{name}.txt").write_text(unit * times)
        (tmp_path / f"{name}.jsonl").write_text((json.dumps({"text": unit}) + "\n") * times)
    program = """
        import resource
        from dadlm.tokens import Tokenizer, prepare
        for name in ("small.txt", "small.jsonl", "large.txt", "large.jsonl"):
            prepare(name, Tokenizer.load("."), "out", progress=False)
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
    """
    run = [sys.executable, "-c", textwrap.dedent(program)]
    env = os.environ | {"PYTHONPATH": str(Path(packing.__file__).parents[2])}
    peaks = subprocess.check_output(run, cwd=tmp_path, env=env, text=True).split()
    assert int(peaks[3]) - int(peaks[1]) < 25, peaks
    large = [s for s in map(Shards.open, (tmp_path / "out").iterdir()) if s.index.text_bytes > 5_000_000]
    assert len(large) == 2
    assert len(Rows.from_shards(large[0], 1024)) > 1_000

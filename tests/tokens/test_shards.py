"""Shards: what is in them, how folders are told apart, and what is left after an accident."""

import errno
import hashlib
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from dadlm.errors import DataError
from dadlm.tokens import (
    Rows,
    Shards,
    Tokenizer,
    describe,
    packing,
    prepare,
    train_bpe,
    unfinished,
    verify,
    word_level,
    writer,
)

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


def test_no_two_settings_share_a_folder(make, source, tmp_path, prose):
    other = train_bpe([prose(5_000)], 300, show_progress=False)
    copy = tmp_path / "sub" / source.name
    copy.parent.mkdir()
    copy.write_text(source.read_text())
    changes = [{}, {"tokenizer": other}, {"text_field": "title"}, {"shard_tokens": 9}, {"source": copy}]
    folders = [make(**change).folder for change in changes]
    source.write_text(source.read_text().replace("river", "RIVER"))  # the same size
    folders.append(make().folder)
    assert len(set(folders)) == len(folders)
    assert all(re.fullmatch(r"text-[0-9a-f]{16}", folder.name) for folder in folders)


def test_finished_folder_is_reused_without_tokenising(make, monkeypatch, capsys):
    first = make(progress=True)
    out, err = capsys.readouterr()
    assert out == "" and "tokens" in err
    monkeypatch.setattr(Tokenizer, "encode_batch", lambda *_: pytest.fail("tokenised again"))
    assert stream(make()) == stream(first)
    with pytest.raises(pytest.fail.Exception):  # the trap does work
        make(shard_tokens=9)


def test_two_at_once_do_the_work_once(make, monkeypatch):
    """A second run of the same preparation waits for the first one and takes what it made."""
    encode, calls, begun, go_on = Tokenizer.encode_batch, [], threading.Event(), threading.Event()

    def slow(self, texts):
        calls.append(texts)
        begun.set()
        assert go_on.wait(60)
        return encode(self, texts)

    monkeypatch.setattr(Tokenizer, "encode_batch", slow)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(make)
        assert begun.wait(60)
        second = threads.submit(make)
        time.sleep(0.1)
        assert not second.done()
        go_on.set()
        assert stream(first.result(60)) == stream(second.result(60))
    assert len(calls) == 1
    folder = first.result().folder
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]
    assert sorted(p.name for p in folder.iterdir()) == ["index.json", "shard-00000.bin", "tokenizer.json"]


def test_two_at_once_without_locks(make, monkeypatch, tmp_path):
    """As on two machines: each works for itself, but only the second gives the folder its name."""
    encode, begun, go_on = Tokenizer.encode_batch, [], [threading.Event(), threading.Event()]

    def in_turn(self, texts):
        number = len(begun)
        begun.append(texts)
        assert go_on[number].wait(60)
        return encode(self, texts)

    expected = stream(make(folder=tmp_path / "alone"))
    monkeypatch.setattr(unfinished, "_wait", lambda lock: None)
    monkeypatch.setattr(Tokenizer, "encode_batch", in_turn)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(make)
        wait_until(lambda: len(begun) == 1)
        second = threads.submit(make)
        wait_until(lambda: len(begun) == 2)
        go_on[0].set()
        with pytest.raises(DataError, match=r"another process has begun.*run again"):
            first.result(60)
        go_on[1].set()
        assert stream(second.result(60)) == expected
    assert stream(verify(second.result().folder)) == stream(make()) == expected


def test_the_second_of_two_without_locks_is_done_first(make, monkeypatch, tmp_path):
    encode, inside = Tokenizer.encode_batch, []

    def overtaken(self, texts):
        if not inside:
            inside.append(texts)
            inside.append(make())
        return encode(self, texts)

    monkeypatch.setattr(unfinished, "_wait", lambda lock: None)
    monkeypatch.setattr(Tokenizer, "encode_batch", overtaken)
    with pytest.raises(DataError, match=r"another process has begun.*run again"):
        make()
    assert [path.name for path in (tmp_path / "out").iterdir()] == [inside[1].folder.name]
    assert stream(verify(inside[1].folder)) == stream(make())


def test_a_file_system_that_cannot_sync_folders(make, monkeypatch):
    fsync = os.fsync

    def files_only(handle):
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", files_only)
    folder = make().folder
    assert stream(verify(folder)) == stream(make())
    assert {unfinished._LOCK, writer.JOURNAL}.isdisjoint(os.listdir(folder))


def wait_until(true):
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_disk_full_is_said_and_leaves_nothing(make, tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "_create", lambda path: open("/dev/full", "wb"))  # noqa: SIM115
    with pytest.raises(DataError, match="disk full"):
        make()
    assert list((tmp_path / "out").iterdir()) == []
    monkeypatch.undo()
    assert make().documents == 3


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
    (folder.parent / "elsewhere").write_bytes(good)
    shard.symlink_to(folder.parent / "elsewhere")
    with pytest.raises(DataError, match=r"shard-00001\.bin is a link"):
        Shards.open(folder)
    shard.unlink()
    shard.write_bytes(good)
    damaged = {
        "version": (text.replace('"version": 2', '"version": 99'), "version 99, expected 2"),
        "cut": (text[:-30], "damaged"),
        "sum": (text.replace('"tokens": ', '"tokens": 1'), "do not add up"),
        "key": (text.replace('"eot_id"', '"eot"'), "damaged"),
        "name": (text.replace('"shards": [', '"shards": ["../../secret.bin", '), "damaged"),
        "names": (text.replace('"shards"', '"files": ["/etc/passwd"], "shards"'), "damaged"),
        "negative": (text.replace('"shards": [', '"shards": [-1, 1, '), "damaged"),
        "object": (text.replace("<u2", "|O"), "damaged"),
        "no object": ("[1]", "damaged"),
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


def test_checksums(make):
    folder = make(shard_tokens=5).folder
    files = sorted(folder.glob("shard-*.bin"))
    assert Shards.open(folder).index.sha256 == [hashlib.sha256(f.read_bytes()).hexdigest() for f in files]
    assert verify(folder).documents == 3
    good = files[1].read_bytes()
    files[1].write_bytes(bytes([good[0] ^ 1]) + good[1:])  # the same size
    assert Shards.open(folder).documents == 3
    with pytest.raises(DataError, match=r"shard-00001\.bin is damaged: its SHA-256"):
        verify(folder)
    files[1].write_bytes(good)
    index = folder / "index.json"
    index.write_text(index.read_text().replace('"vocab_size": 320', '"vocab_size": 3'))
    with pytest.raises(DataError, match="outside the vocabulary of 3"):
        verify(folder)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_is_constant(bpe, prose, tmp_path):
    """A process that has prepared 1 MB needs no more memory for 4 MB as one document, nor as many."""
    unit = prose(50_000)
    bpe.save(tmp_path)
    for name, times in (("small", 20), ("large", 80)):
        (tmp_path / f"{name}.txt").write_text(unit * times)
        (tmp_path / f"{name}.jsonl").write_text((json.dumps({"text": unit}) + "\n") * times)
    program = """
        from pathlib import Path
        from dadlm.tokens import Tokenizer, prepare
        for name in ("small.txt", "small.jsonl", "large.txt", "large.jsonl"):
            prepare(name, Tokenizer.load("."), "out", progress=False)
            lines = Path("/proc/self/status").read_text().splitlines()
            print(next(int(line.split()[1]) // 1024 for line in lines if line[:6] == "VmHWM:"))
    """
    run = [sys.executable, "-c", textwrap.dedent(program)]
    # One thread: each of the library's own keeps some memory, and machines have 2 or 200 of them.
    env = os.environ | {"PYTHONPATH": str(Path(packing.__file__).parents[2])}
    env |= {"TOKENIZERS_PARALLELISM": "false"}
    peaks = subprocess.check_output(run, cwd=tmp_path, env=env, text=True).split()
    assert int(peaks[3]) - int(peaks[1]) < 25, peaks
    large = [s for s in map(Shards.open, (tmp_path / "out").iterdir()) if s.index.text_bytes > 2_500_000]
    assert len(large) == 2
    assert len(Rows.from_shards(large[0], 1024)) > 1_000

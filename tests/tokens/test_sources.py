"""Every format gives the same texts; every kind of bad input is named with its place."""

import gzip
import json
import os
import sys
import tracemalloc
import types
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from dadlm.errors import DataError
from dadlm.tokens import describe, hub, pieces, read_pieces, read_texts, readers, sources

TEXTS = ["Eins.\nZwei.", "  東京 \r\n", "a" * 70_000 + " b", "{}"]


def jsonl(texts=TEXTS, field="text") -> bytes:
    return b"".join(json.dumps({"id": 1, field: text}).encode() + b"\n" for text in texts)


def write_parquet(path, texts=TEXTS, field="text", kind=None):
    table = pyarrow.table({"id": range(len(texts)), field: pyarrow.array(texts, type=kind)})
    pyarrow.parquet.write_table(table, path)


@pytest.fixture
def everything(tmp_path):
    """One folder with each format of documents, and a file that is none."""
    long = zstandard.ZstdCompressionParameters(window_log=28)
    wide = zstandard.ZstdCompressor(compression_params=long).compressobj()
    frames = [zstandard.compress(jsonl(TEXTS[:1])), wide.compress(jsonl(TEXTS[1:])), wide.flush()]
    (tmp_path / "a.jsonl").write_bytes(jsonl())
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(jsonl()))
    # Two frames, as parallel packers write; zstd --long.
    (tmp_path / "c.jsonl.zst").write_bytes(b"".join(frames))
    write_parquet(tmp_path / "d.parquet")
    (tmp_path / "README.md").write_text("not text to train on")
    return tmp_path


@pytest.mark.parametrize("name", ["a.jsonl", "b.jsonl.gz", "c.jsonl.zst", "d.parquet"])
def test_every_format_gives_the_same_texts(everything, name):
    assert list(read_texts(everything / name)) == TEXTS


@pytest.mark.parametrize(
    "pack", [(".txt", bytes), (".txt.gz", gzip.compress), (".txt.zst", zstandard.compress)]
)
def test_txt_is_one_document(tmp_path, pack, prose):
    text = prose(900_000)  # several chunks, characters of one to four bytes across their borders
    file = tmp_path / f"book{pack[0]}"
    file.write_bytes(pack[1](text.encode()))
    assert list(read_texts(file)) == [text]
    assert max(len(piece.text) for piece in read_pieces(file)) <= pieces.LIMIT


def test_folder_and_pattern(everything, tmp_path_factory):
    with pytest.raises(DataError, match="holds no text"):
        list(read_texts(tmp_path_factory.mktemp("empty")))
    (everything / "deep").mkdir()
    (everything / "deep" / "e.TXT").write_text("last")
    assert list(read_texts(everything)) == TEXTS * 4 + ["last"]
    assert list(read_texts(everything / "*.jsonl*")) == TEXTS * 3
    assert list(read_texts(str(everything / "**" / "*.TXT"))) == ["last"]


def test_progress_ends_at_the_size_of_the_source(everything):
    read = [piece.read for piece in read_pieces(everything)]
    assert read == sorted(read)
    assert read[-1] == sources.size_of(everything)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl.zst"])
def test_reading_takes_constant_memory(tmp_path, name, prose):
    unit = prose(50_000).replace("\n", " ")
    content = (unit if name == "a.txt" else json.dumps({"text": unit}) + "\n").encode() * 600
    (tmp_path / name).write_bytes(zstandard.compress(content) if name.endswith("zst") else content)
    del content
    tracemalloc.start()
    size = sum(len(piece.text) for piece in read_pieces(tmp_path / name))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size == 600 * len(unit)
    assert peak < 6_000_000


def test_byte_order_mark_and_blank_lines_and_empty_documents_are_left_out(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + jsonl(["x", ""]) + b"\n  \n" + jsonl(["y"]))
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfz")
    assert list(read_texts(tmp_path)) == ["x", "y", "z"]


@given(text=st.text("ab \n\t.é", max_size=200), limit=st.integers(1, 20), parts=st.integers(1, 200))
def test_pieces_join_to_the_text_wherever_it_arrives_in_parts(text, limit, parts):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "LIMIT", limit)
        expected = pieces.split_text(text)
        assert "".join(expected) == text
        assert all(0 < len(piece) <= limit for piece in expected) or text == ""
        done, rest = [], ""
        for start in range(0, len(text), parts):
            *ready, rest = pieces.split_text(rest + text[start : start + parts])
            done += ready
        assert [*done, rest] == expected


# A word and a gap fit into every limit tried, so there is always a place to cut without harm.
WORD = st.sampled_from(["a", "it's", "b12.", "東", "..."])
GAP = st.sampled_from([" ", "    ", "\n\n", "\n  ", "  \t"])


@given(words=st.lists(st.tuples(WORD, GAP), max_size=30), limit=st.integers(8, 20))
def test_cuts_do_not_change_what_gpt2_takes_for_words(words, limit):
    text = "".join(map("".join, words))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "LIMIT", limit)
        parts = pieces.split_text(text)
    assert len(parts) >= len(text) / limit
    split = ByteLevel(add_prefix_space=False).pre_tokenize_str
    assert [word for part in parts for word, _ in split(part)] == [word for word, _ in split(text)]


BAD = {
    "missing": (None, "no file, folder or pattern"),
    "empty.txt": (b"", r"empty\.txt is empty"),
    "bom.txt": (b"\xef\xbb\xbf", "no documents"),
    "blank.jsonl": (b'\n\n{"text": ""}\n', "no documents"),
    "what.csv": (b"a,b", r"'\.csv' are unknown; expected \.txt and \.jsonl.*\.parquet"),
    "bare": (b"a,b", r"its name has no ending; expected \.txt"),
    "p.parquet.gz": (b"a", r"\.gz' are unknown"),
    "latin.txt": (
        "eins\nzwei\ndré".encode("latin1"),
        r"latin\.txt is not UTF-8: line 3, byte offset 12 \(byte 0xE9",
    ),
    "windows.txt": ("’".encode("windows-1252"), "iconv -f windows-1252 -t utf-8"),
    "wide.txt": ("ab".encode("utf-16"), r"byte 0xFF, .*iconv -f utf-16 -t utf-8"),
    "cut.txt": ("x\né".encode()[:-1], "line 2, byte offset 2 .*unexpected end"),
    "far.txt": (b"ab\xc3\xa9\n" * 100_000 + b"\xff", "line 100001, byte offset 500000"),
    "latin.jsonl": (jsonl(["ok"]) + b'{"text": "\xe9"}\n', r"line 2, byte offset 34 \(byte 0xE9"),
    "mark.txt": (b"\xef\xbb\xbfa\xe9", r"line 1, byte offset 4 \(byte 0xE9"),  # offsets count the mark
    "mark.jsonl": (b'\xef\xbb\xbf{"text": "\xe9"}', r"line 1, byte offset 13 \(byte 0xE9"),
    "latin.jsonl.gz": (gzip.compress(b'{"text": "\xe9"}'), "line 1, byte offset 10 of the unpacked text"),
    "bad.jsonl": (jsonl(["ok", "ok"]) + b'{"text": "x"', r"line 3: not valid JSON.*begins '\{\"text"),
    "list.jsonl": (b"[1]", "line 1: expected an object"),
    "field.jsonl": (jsonl(["ok"]) + b'{"title": "x", "body": "y"}', "line 2: no field 'text'.*title, body"),
    "number.jsonl": (b'{"text": 5}', "line 1: field 'text' holds int"),
    "half.jsonl": (b'{"text": "\\ud800"}', r"line 1: .*half a character \('\\ud800'\)"),
    "short.jsonl.gz": (gzip.compress(jsonl())[:-20], r"short\.jsonl\.gz is damaged or cut short"),
    "other.jsonl.gz": (b"not gzip at all", "damaged"),
    "short.jsonl.zst": (zstandard.compress(jsonl())[:-20], r"short\.jsonl\.zst is damaged or cut short"),
    "other.jsonl.zst": (b"not zstd at all", "damaged"),
    "other.parquet": (b"not parquet at all", "not a readable parquet"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(tmp_path, name):
    content, message = BAD[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(read_texts(tmp_path / name))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"])
def test_a_line_without_end_is_refused_before_it_fills_memory(tmp_path, monkeypatch, name):
    monkeypatch.setattr(readers, "LONGEST", 1 << 20)
    content = jsonl(["ok"]) + b'{"text": "' + b"x" * (64 << 20)
    pack = {".gz": gzip.compress, ".zst": zstandard.compress}.get(name[-4:].lstrip("l"), bytes)
    (tmp_path / name).write_bytes(pack(content))
    del content
    tracemalloc.start()
    with pytest.raises(DataError, match=r"line 2: longer than 1 MiB; split it.*or make it a \.txt file"):
        list(read_texts(tmp_path / name))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20


def test_a_text_without_end_in_parquet_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "LONGEST", 1 << 20)
    long = "x" * (3 << 20)
    write_parquet(tmp_path / "a.parquet", ["ok"] * 40 + [long])  # one of many, in a group of a usual size
    with pytest.raises(DataError, match="row 41: longer than 1 MiB"):
        list(read_texts(tmp_path / "a.parquet"))
    write_parquet(tmp_path / "a.parquet", [long])
    monkeypatch.setattr("pyarrow.parquet.ParquetFile.iter_batches", None)  # nothing is unpacked
    with pytest.raises(DataError, match="row group 1: longer than 1 MiB"):
        list(read_texts(tmp_path / "a.parquet"))


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(DataError, match=r"pipe\.jsonl is no regular file"):
        list(read_texts(tmp_path / "pipe.jsonl"))
    for name in ("/dev/stdin", "/dev/fd/0"):
        readers.check_regular(Path(name))


def test_bad_parquet_columns(tmp_path):
    write_parquet(tmp_path / "a.parquet", field="body")
    with pytest.raises(DataError, match="no field 'text'; its fields are: id, body"):
        list(read_texts(tmp_path / "a.parquet"))
    write_parquet(tmp_path / "a.parquet", ["x", None])
    with pytest.raises(DataError, match="row 2: field 'text' holds NoneType"):
        list(read_texts(tmp_path / "a.parquet"))
    raw = pyarrow.array([b"\xe9"], type=pyarrow.binary()).cast(pyarrow.string(), safe=False)
    write_parquet(tmp_path / "a.parquet", raw)
    with pytest.raises(DataError, match="not UTF-8: column 'text'"):
        list(read_texts(tmp_path / "a.parquet"))


@pytest.mark.parametrize(
    ("name", "package"), [("a.jsonl.zst", "zstandard"), ("a.parquet", "pyarrow"), ("hf:name", "datasets")]
)
def test_missing_package_names_the_pip_line(tmp_path, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(DataError, match=rf"{package}.*pip install 'dadlm\[train\]'"):
        list(read_texts(name if name.startswith("hf:") else tmp_path / name))


def test_description_follows_name_and_content(tmp_path, monkeypatch):
    file = tmp_path / "a.txt"
    seen = []
    for limit in (sources._HASH_ALL, 0):  # whole content, and the two ends of a large file
        monkeypatch.setattr(sources, "_HASH_ALL", limit)
        monkeypatch.setattr(sources, "_HASH_END", 4)
        for text in ("abcdefghij", "abcdefghiX", "Xbcdefghij", "abcdefghij more"):
            file.write_text(text)
            os.utime(file, (0, 0))
            assert describe(file) == describe(str(file))
            seen.append(describe(file)[0]["hash"])
    os.utime(file, (1, 1))  # a large file is known by its time, too
    seen.append(describe(file)[0]["hash"])
    assert len(set(seen)) == len(seen)
    assert describe(file)[0]["file"] == str(file.resolve())
    assert describe(file)[0]["size"] == len("abcdefghij more")


@pytest.fixture
def fake_hub(monkeypatch):
    """A hub with one dataset; what was asked of it is kept."""
    asked = []

    def load_dataset(name, config, *, revision, split, streaming):
        asked.append((name, config, revision, split, streaming))
        if split == "test":
            raise ValueError("Unknown split\nmore")
        return datasets.IterableDataset.from_generator(texts_of, gen_kwargs={"split": split})

    def texts_of(split):
        yield from ({"text": text} for text in TEXTS)
        if split == "broken":
            raise ConnectionError("line went dead")

    hub._revision.cache_clear()
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *_: types.SimpleNamespace(sha="c0ffee"))
    yield asked
    hub._revision.cache_clear()


def test_hub_dataset(fake_hub):
    assert list(read_texts("hf:org/name:big", split="validation")) == TEXTS
    assert fake_hub == [("org/name", "big", "c0ffee", "validation", True)]
    expected = {"dataset": "org/name", "config": "big", "split": "validation", "revision": "c0ffee"}
    assert describe("hf:org/name:big", "validation") == [expected]


def test_hub_dataset_goes_on_from_an_anchor(tmp_path, monkeypatch):
    """The real library's reader over three files; files before the anchor are not opened again."""
    files = [tmp_path / f"{n}.jsonl" for n in range(3)]
    for n, file in enumerate(files):
        file.write_bytes(jsonl([f"{n} {row}" for row in range(10)]))
    load = datasets.load_dataset

    def load_dataset(name, config, *, revision, split, streaming):
        return load("json", data_files=[str(f) for f in files], split=split, streaming=streaming)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(hub, "_revision", lambda _: "c0ffee")
    monkeypatch.setattr(hub, "_EVERY", 4)
    whole = list(read_pieces("hf:x"))
    assert [piece.text for piece in whole] == [f"{n} {row}" for n in range(3) for row in range(10)]
    anchor, texts = None, [piece.text for piece in whole]
    for row in range(0, 28, 4):  # from anchor to anchor, each taken by the run that began at the one before
        pieces = list(read_pieces("hf:x", anchor=anchor))
        assert [piece.text for piece in pieces] == texts[row:]
        assert {piece.anchor["row"] for piece in pieces[:4] if piece.anchor} <= {row}
        anchor = json.loads(json.dumps(pieces[4].anchor))
    files[0].write_bytes(jsonl(["not counted again"]))
    assert [piece.text for piece in read_pieces("hf:x", anchor=whole[-1].anchor)] == texts[28:]


def test_hub_failures(fake_hub):
    for split, message in (("test", "Unknown split"), ("broken", "line went dead")):
        with pytest.raises(DataError, match=f"hf:org/name cannot be read.*{message}"):
            list(read_texts("hf:org/name", split=split))
    with pytest.raises(DataError, match="row 1: no field 'body'; its fields are: text"):
        list(read_texts("hf:org/name", text_field="body"))
    with pytest.raises(DataError, match="names no dataset"):
        describe("hf:")


def test_links_to_folders_are_followed_once(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "data" / "a.txt").write_text("one")
    (tmp_path / "blob").write_bytes(zstandard.compress(jsonl(["two"])))
    (tmp_path / "elsewhere" / "b.jsonl.zst").symlink_to(tmp_path / "blob")  # read as its own name says
    (tmp_path / "data" / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "data")
    assert list(read_texts(tmp_path / "data")) == ["one", "two"]

"""Files made to do harm: refused with a clear error, nothing written, nothing run, nothing read outside."""

import io
import json
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch
from tests.interop import published
from tests.interop.published import refusal

from dadlm.interop.convert import convert
from dadlm.tokens import train_bpe


class Poison:
    """Unpickled carelessly, it writes a file."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return (Path.write_text, (self.trace, "run"))


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    published.write(tmp_path / "theirs")
    return tmp_path / "theirs"


@pytest.fixture
def pickled(tmp_path: Path) -> Path:
    published.write(tmp_path / "theirs", pickled=True)
    return tmp_path / "theirs"


# Pickles


def test_a_poisoned_pickle_is_not_run(pickled: Path) -> None:
    trace = pickled.parent / "trace"
    torch.save(published.weights() | {"poison": Poison(trace)}, pickled / "pytorch_model.bin")
    assert "was not run" in refusal(pickled)
    published.write(pickled.parent / "parts", pickled=True, parts=2)
    torch.save({"poison": Poison(trace)}, pickled.parent / "parts" / "pytorch_model-00002-of-00002.bin")
    assert "was not run" in refusal(pickled.parent / "parts")
    published.write(pickled.parent / "safe")
    torch.save({"poison": Poison(trace)}, pickled.parent / "safe" / "model.safetensors")
    assert "truncated or damaged" in refusal(pickled.parent / "safe")
    assert not trace.exists()
    # The poison works: a loader that trusts it would have run it.
    torch.load(pickled / "pytorch_model.bin", weights_only=False)
    assert trace.read_text() == "run"


@pytest.mark.parametrize("form", ["plain", "legacy", "tar"])
def test_older_forms_of_pickle_are_not_read(form: str, pickled: Path) -> None:
    file, poison = pickled / "pytorch_model.bin", Poison(pickled.parent / "trace")
    if form == "plain":
        file.write_bytes(pickle.dumps(poison))
    elif form == "legacy":
        torch.save({"poison": poison}, file, _use_new_zipfile_serialization=False)
    else:
        with tarfile.open(file, "w") as archive:
            member = tarfile.TarInfo("../storages")
            data = pickle.dumps(poison)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    assert "safetensors" in refusal(pickled)


@pytest.mark.parametrize("name", ["../../outside", "/tmp/outside", "a\\..\\outside"])
def test_path_tricks_in_the_names_of_an_archive(name: str, pickled: Path) -> None:
    with zipfile.ZipFile(pickled / "pytorch_model.bin", "a") as archive:
        archive.writestr(name, "anything")
    assert "nothing was read" in refusal(pickled)


@pytest.mark.parametrize(
    "what",
    [
        [torch.zeros(2)],
        {1: torch.zeros(2)},
        {"a": {"b": torch.zeros(2)}},
        {"a": 3},
        {"a": torch.zeros(1).expand(10**9)},
        {"a": torch.zeros(2, device="meta")},
        {"a": torch.zeros(2, 2).to_sparse()},
    ],
    ids=["a list", "numbers for names", "nested", "no tensor", "tiny but huge", "without numbers", "sparse"],
)
def test_pickles_of_something_else(what: object, pickled: Path) -> None:
    torch.save(what, pickled / "pytorch_model.bin")
    assert "tensors" in refusal(pickled)


def test_code_in_the_folder_is_not_run(theirs: Path) -> None:
    trace = theirs.parent / "trace"
    (theirs / "modeling_bd3lm.py").write_text(f"open({str(trace)!r}, 'w').write('run')")
    convert(theirs, theirs.parent / "ours")
    assert not trace.exists()


# Safetensors


def _header(file: Path) -> tuple[dict, bytes]:
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def _rewrite(file: Path, header: dict, body: bytes) -> None:
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + body)


NAME = "backbone.blocks.0.norm1.weight"


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: entry | {"data_offsets": [0, 10**15]},
        lambda entry: entry | {"data_offsets": [-128, 0]},
        lambda entry: entry | {"data_offsets": entry["data_offsets"][::-1]},
        lambda entry: entry | {"shape": [2**62, 4]},
        lambda entry: entry | {"shape": [16]},
        lambda entry: entry | {"dtype": "PICKLE"},
        lambda entry: {"dtype": "F32"},
    ],
    ids=["too far", "before the start", "backwards", "huge", "too small", "no such type", "incomplete"],
)
def test_a_header_that_lies(change, theirs: Path) -> None:
    header, body = _header(theirs / "model.safetensors")
    _rewrite(theirs / "model.safetensors", header | {NAME: change(header[NAME])}, body)
    assert "truncated or damaged" in refusal(theirs)
    # And two tensors in one place.
    _rewrite(theirs / "model.safetensors", header | {NAME: header["backbone.blocks.1.norm1.weight"]}, body)
    assert "truncated or damaged" in refusal(theirs)


# The index


TRICKS = ["../outside", "/tmp/outside", "..\\outside", "C:\\outside", "C:outside", "below/inside", "~/x"]


@pytest.mark.parametrize(
    "name", [f"{trick}.safetensors" for trick in TRICKS] + ["", "..", "model.bin", 7, None, "a\0"]
)
def test_path_tricks_in_an_index(name: object, tmp_path: Path) -> None:
    published.write(tmp_path / "theirs", parts=2)
    index = tmp_path / "theirs" / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    first = content["weight_map"][NAME]
    # The file exists where the trick would look, and holds just what the index says.
    for place in ("outside.safetensors", "theirs/below/inside.safetensors", "theirs/inside.safetensors"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_bytes((tmp_path / "theirs" / first).read_bytes())
    content["weight_map"] = {k: name if v == first else v for k, v in content["weight_map"].items()}
    index.write_text(json.dumps(content))
    assert "nothing was read" in refusal(tmp_path / "theirs")


def test_an_index_that_does_not_say_what_is_there(tmp_path: Path) -> None:
    published.write(tmp_path / "theirs", parts=2)
    index = tmp_path / "theirs" / "model.safetensors.index.json"
    good = json.loads(index.read_text())
    places = good["weight_map"]
    other = next(file for file in places.values() if file != places[NAME])
    for bad in (
        {},
        {"weight_map": {}},
        {"weight_map": ["model.safetensors"]},
        {"weight_map": places | {NAME: other}},
        {"weight_map": {k: v for k, v in places.items() if k != NAME}},
        {"weight_map": places | {"more": "absent.safetensors"}},
    ):
        index.write_text(json.dumps(bad))
        assert str(tmp_path / "theirs") in refusal(tmp_path / "theirs")


# The rest


def test_a_tokenizer_with_another_vocabulary(theirs: Path) -> None:
    for words in (published.WORDS[:-1], [*published.WORDS, "more"]):
        published.tokenizer(words).save(theirs)
        assert "ids, the model wants 29" in refusal(theirs)
    train_bpe(["some text"], 300, show_progress=False).save(theirs)
    assert "the model wants 29" in refusal(theirs)


def test_a_damaged_or_missing_tokenizer(theirs: Path) -> None:
    (theirs / "tokenizer.json").write_text('{"model": 3}')
    assert "tokenizer" in refusal(theirs)
    (theirs / "tokenizer.json").unlink()
    assert "has no tokenizer" in refusal(theirs)
    (theirs / "model.safetensors").unlink()
    assert "no weights" in refusal(theirs)
    (theirs.parent / "model.zip").write_bytes(b"PK")  # nothing is ever unpacked
    assert "not a model folder" in refusal(theirs.parent / "model.zip")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"model_type": ' + "[" * 100_000, "\0"])
def test_a_damaged_configuration(text: str, theirs: Path) -> None:
    (theirs / "config.json").write_text(text)
    assert "config.json" in refusal(theirs)

"""Folders of weights: what comes back, what is refused and how, and what survives a failure."""

import errno
import json
import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.model.tiny import random_ids, random_noise, tiny_config, tiny_model

from dadlm.errors import CheckpointError, ConfigError, DadlmError
from dadlm.model import Model, checkpoint, files, find_device, load, save
from dadlm.objective import losses
from dadlm.tokens import word_level

WORDS = [f"w{i}" for i in range(28)]  # and end-of-text: ids 0..28, the mask is 29


@pytest.fixture
def folder(tmp_path) -> Path:
    """A saved DA-DLM."""
    save(tiny_model(), tmp_path / "model")
    return tmp_path / "model"


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def change_config(folder: Path, **changes) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def change_weights(folder: Path, drop: tuple[str, ...] = (), **changes: torch.Tensor) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file) | changes
    save_file({name: tensor for name, tensor in tensors.items() if name not in drop}, file)


def refusal(folder: Path | str) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    return str(caught.value)


@pytest.mark.parametrize("architecture", ["lean", "bd3lm"])
@pytest.mark.parametrize("family", ["ar", "mdlm", "bd3lm", "dadlm"])
def test_a_loaded_model_gives_identical_outputs(family, architecture, tmp_path):
    model = tiny_model(family, architecture=architecture, transition="gated", candidate_offset=0.3)
    save(model, tmp_path / "deep" / "down" / "model")
    loaded = load(tmp_path / "deep" / "down" / "model")
    assert loaded.config == model.config and not loaded.training
    ids = random_ids(model.config)
    noise = None if family == "ar" else random_noise(model)
    ours, theirs = losses(loaded, ids, noise), losses(model, ids, noise)
    assert torch.equal(ours.train, theirs.train) and torch.equal(ours.bound, theirs.bound)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name


def test_a_tied_head_is_stored_once_and_comes_back_tied(folder):
    names = load_file(folder / "model.safetensors").keys()
    assert "backbone.embedding.weight" in names and "head.linear.weight" not in names
    model = load(folder)
    assert model.head.linear.weight is model.backbone.embedding.weight


def test_only_json_and_safetensors_are_written(tmp_path):
    for _ in range(2):
        save(Model(tiny_config(), word_level(WORDS)), tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert load(tmp_path / "model").tokenizer == word_level(WORDS)
    names = {file.name for file in (tmp_path / "model").iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json"}
    json.loads((tmp_path / "model" / "config.json").read_text())
    header = (tmp_path / "model" / "model.safetensors").read_bytes()[8:9]
    assert header == b"{"  # a length, then JSON: no pickle


def test_folder_and_files_can_be_read_by_others(folder):
    """As any other file the user makes: temporary folders are made for their owner alone."""
    plain = folder.parent / "plain"
    plain.mkdir()
    (plain / "file").write_text("")
    assert folder.stat().st_mode == plain.stat().st_mode
    modes = {file.name: oct(file.stat().st_mode) for file in folder.iterdir()}
    assert set(modes.values()) == {oct((plain / "file").stat().st_mode)}, modes


def test_every_difference_is_listed(folder):
    change_weights(
        folder,
        drop=("graph.start", "backbone.layers.1.out.weight"),
        stranger=torch.zeros(2, 3),
        **{
            "graph.candidate": torch.zeros(7, 32),
            "backbone.norm.weight": torch.zeros(5),
            "backbone.layers.0.up.weight": torch.zeros(32, 128),  # turned over: as many numbers as expected
        },
    )
    message = refusal(folder)
    assert "do not fit this dadlm model" in message
    assert sorted(line.strip() for line in message.splitlines()[1:]) == [
        "missing: backbone.layers.1.out.weight (32, 32)",
        "missing: graph.start (32,)",
        "shape: backbone.layers.0.up.weight is (32, 128), expected (128, 32)",
        "shape: backbone.norm.weight is (5,), expected (32,)",
        "shape: graph.candidate is (7, 32), expected (3, 32)",
        "unknown: stranger (2, 3)",
    ]


def test_weights_that_do_not_fit_leave_the_model_as_it_was():
    model = tiny_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tensors = {name: torch.zeros_like(tensor) for name, tensor in checkpoint.weights(model).items()}
    tensors["graph.start"] = torch.zeros(3)
    with pytest.raises(CheckpointError, match=r"shape: graph.start is \(3,\), expected \(32,\)"):
        checkpoint.set_weights(model, tensors, "somewhere")
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_weights_whose_numbers_were_changed_are_refused(folder):
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    assert "checksum" in refusal(folder)


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, -1, "a header that lies"])
def test_truncated_weights_are_refused(folder, keep):
    file = folder / "model.safetensors"
    data = file.read_bytes()
    if isinstance(keep, str):
        file.write_bytes((2**40).to_bytes(8, "little") + data[8:])
    else:
        file.write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    assert "truncated or damaged" in refusal(folder)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"colour": "red", "size": 3}, "unknown keys: colour, size"),
        ({"model_type": "gpt2"}, "model_type"),
        ({"candidates": 5}, r"shape: graph.candidate is \(3, 32\), expected \(5, 32\)"),
        ({"family": "bd3lm"}, "unknown: graph.start"),
        ({"layers": 3}, "missing: backbone.layers.2"),
        *(({name: "two"}, f"not a valid configuration: {name}") for name in ("layers", "track_bias")),
        *(({name: None}, f"not a valid configuration: {name}") for name in ("vocab_size", "candidate_scale")),
        *(({name: 2.5}, f"not a valid configuration: {name}") for name in ("layers", "tie_embedding")),
        ({"heads": True}, "not a valid configuration: heads"),
        ({"architecture": ["lean"]}, "architecture"),
        ({"format": 99}, "format"),
        ({"layers": 10**9}, "layers must be at most"),
        ({"layers": 1000}, "1000 layers, but only"),
        ({"width": 2**20}, "width must be at most"),
        ({"vocab_size": 10**12}, "vocab_size must be at most"),
        ({"eot_id": 10**400}, "eot_id must be at most"),
        ({"rope_theta": 10**400}, "rope_theta must be at most"),
        ({"rope_theta": float("inf")}, "rope_theta must be finite"),
        ({"dropout": float("nan")}, "dropout must be finite"),
    ],
)
def test_tampered_configuration_is_refused(folder, changes, says):
    change_config(folder, **changes)
    with pytest.raises(CheckpointError, match=says):
        load(folder)


def test_shapes_are_compared_with_the_header_before_anything_is_built(folder, monkeypatch):
    """All of these are within bounds, and would take more memory than there is."""
    built = []
    monkeypatch.setattr(files, "load_tensors", lambda file: built.append(file))
    for changes in ({"width": 2**16, "heads": 1024}, {"lora": 2**14}, {"candidates": 1024}):
        before = (folder / "config.json").read_text()
        change_config(folder, **changes)
        assert "do not fit this dadlm model" in refusal(folder)
        (folder / "config.json").write_text(before)
    assert not built


def test_a_damaged_configuration_is_refused(folder):
    deep = (b"[" * 100_000, b'{"a":' * 100_000)
    for text in (b"", b"{", b"[1, 2]", b"null", b"\x00", *deep, b" " * 2**21 + b"{}", b'{"a": "\xff"}'):
        (folder / "config.json").write_bytes(text)
        assert "config.json" in refusal(folder)


@pytest.mark.parametrize(
    ("count", "eot", "told"), [(20, 28, "21 ids, the model wants 29"), (28, 3, "end-of-text is id 28")]
)
def test_a_tokenizer_of_another_model_is_refused(folder, count, eot, told):
    """Of the same size too: generation would stop at another token than the one the model was taught."""
    change_config(folder, eot_id=eot)
    word_level(WORDS[:count]).save(folder)
    assert told in refusal(folder)


def test_a_damaged_tokenizer_is_refused(folder):
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(DadlmError, match="tokenizer"):
        load(folder)


def test_absent_and_incomplete_folders_are_refused(folder, tmp_path):
    for place in (tmp_path / "absent", "absent"):
        assert "no folder" in refusal(place)
    for place in ("x" * 300, "x/" * 3000):
        assert "File name too long" in refusal(place)
    for missing in ("config.json", "model.safetensors"):
        (folder / missing).rename(folder / "aside")
        assert "is not a model folder" in refusal(folder)
        (folder / "aside").rename(folder / missing)


def test_weights_that_cannot_be_opened_are_not_told_as_missing(folder, monkeypatch):
    unlocked = open

    def locked(file, *how, **more):
        if Path(file).name == "model.safetensors":
            raise PermissionError(errno.EACCES, "Permission denied")
        return unlocked(file, *how, **more)

    monkeypatch.setattr("builtins.open", locked)
    assert "model.safetensors cannot be read: Permission denied" in refusal(folder)
    monkeypatch.undo()
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    assert "model.safetensors is no regular file" in refusal(folder)


def test_a_name_that_the_hub_does_not_give_is_refused(monkeypatch):
    import huggingface_hub

    def offline(*_, **__):
        raise ConnectionError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    assert "no folder some/name, and the hub does not give it: no network" in refusal("some/name")


def test_a_training_run_stands_for_its_best_model(tmp_path):
    save(tiny_model(seed=1), tmp_path / "run" / "last")
    assert torch.equal(load(tmp_path / "run").graph.start, tiny_model(seed=1).graph.start)
    save(tiny_model(seed=2), tmp_path / "run" / "best")
    assert torch.equal(load(tmp_path / "run").graph.start, tiny_model(seed=2).graph.start)


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """A new model that is saved over the old one fails, and the old one stays."""
    before = content(folder)
    yield
    assert folder.is_dir() and content(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_a_full_disk_leaves_the_previous_folder_intact(folder):
    """Files may not grow beyond 20 kB: the weights do not fit, and the writer says so itself."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with untouched(folder):
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
        try:
            with pytest.raises(CheckpointError, match="could not write"):
                save(tiny_model(seed=1), folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("function", ["files.write_json", "files.save_file", "files.os.fsync"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "it failed"), KeyboardInterrupt()], ids=str)
def test_an_error_or_interrupt_while_saving_leaves_the_previous_folder_intact(
    folder, monkeypatch, function, error
):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(f"dadlm.model.{function}", fail)
    with untouched(folder), pytest.raises((CheckpointError, KeyboardInterrupt)) as caught:
        save(tiny_model(seed=1), folder)
    if isinstance(error, OSError):
        assert re.search(r"could not write .*model: it failed; nothing was replaced", str(caught.value))


@pytest.mark.parametrize("which", [1, 2], ids=["setting the old aside", "putting the new in place"])
def test_a_rename_that_fails_leaves_the_previous_folder_intact(folder, monkeypatch, which):
    calls, rename = [], Path.rename

    def fail(self, target):
        calls.append(self)
        if len(calls) == which:
            raise OSError(errno.EIO, "it failed")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with untouched(folder), pytest.raises(CheckpointError):
        save(tiny_model(seed=1), folder)


def test_writers_of_one_file_do_not_mix_what_they_write(tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    with files.whole_file(file) as slow:
        slow.write(b"slow" * 2000)
        with files.whole_file(file) as quick:
            quick.write(b"quick")
        assert file.read_bytes() == b"quick"
        slow.write(b"end")
        assert file.read_bytes() == b"quick"
    assert file.read_bytes() == b"slow" * 2000 + b"end"
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_saving_where_other_things_lie_is_refused_and_deletes_nothing(tmp_path):
    """A mistyped path (the folder of all runs, a text file) must not cost what is there."""
    (tmp_path / "runs" / "precious").mkdir(parents=True)
    (tmp_path / "runs" / "precious" / "notes.txt").write_text("months of work")
    (tmp_path / "thesis.txt").write_text("years of work")
    before = content(tmp_path)
    for place in ("runs", "thesis.txt"):
        with pytest.raises(CheckpointError):
            save(tiny_model(), tmp_path / place)
    with pytest.raises(CheckpointError, match="could not write"):
        save(tiny_model(), tmp_path / "thesis.txt" / "model")
    assert content(tmp_path) == before


def test_a_model_of_others_is_not_replaced(folder: Path, tmp_path: Path) -> None:
    """Its files are called as ours are; what config.json says is what tells them apart."""
    word_level(WORDS).save(folder)
    (folder / "tokenizer_config.json").write_text("{}")
    ours = json.loads((folder / "config.json").read_text())
    for config in ({"model_type": "llama"}, {}, ours | {"model_type": ["dadlm"]}, [ours], None):
        (folder / "config.json").write_text(json.dumps(config))
        with untouched(folder), pytest.raises(CheckpointError, match="no model folder of ours"):
            save(tiny_model(seed=1), folder)
    (folder / "config.json").unlink()
    with untouched(folder), pytest.raises(CheckpointError, match="no model folder of ours"):
        save(tiny_model(seed=1), folder)
    (folder / "config.json").write_text(json.dumps(ours))
    save(tiny_model(seed=1), folder)
    (tmp_path / "empty").mkdir()
    save(tiny_model(), tmp_path / "empty")


def test_a_model_in_bfloat16(tmp_path: Path) -> None:
    model = tiny_model("dadlm")
    save(model, tmp_path / "model")
    half = load(tmp_path / "model", dtype="bfloat16")
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    with pytest.raises(ConfigError, match="float32, bfloat16"):
        load(tmp_path / "model", dtype="float8")


def test_another_gpu_than_the_current_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert find_device("cuda:0") == torch.device("cuda:0") and find_device("cuda").type == "cuda"
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES"):
        find_device("cuda:1")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("bits", [32, 8])
def test_weights_that_are_not_finite_are_refused_by_name(value: float, bits: int, tmp_path: Path) -> None:
    save(tiny_model(), tmp_path / "model", bits=bits)
    damaged = "backbone.layers.1.up.weight"
    stored = load_file(tmp_path / "model" / "model.safetensors")
    tensor = stored[damaged + (".scale" if bits == 8 else "")]
    tensor.view(-1)[3] = value
    save_file(stored, tmp_path / "model" / "model.safetensors")
    change_config(tmp_path / "model", weights_sha256=None)
    message = refusal(tmp_path / "model")
    assert damaged in message and "not finite" in message


def test_weights_that_are_finite_only_in_double_precision_are_refused(folder: Path) -> None:
    change_weights(folder, **{"graph.start": torch.full((32,), 1e300, dtype=torch.float64)})
    change_config(folder, weights_sha256=None)
    message = refusal(folder)
    assert "graph.start" in message and "not finite" in message


@pytest.mark.parametrize(("on_gpu", "expected"), [(False, "float32"), (True, "bfloat16")])
def test_dtype_auto_follows_the_device(tmp_path, monkeypatch, on_gpu: bool, expected: str) -> None:
    save(tiny_model(), tmp_path / "model")
    seen = []
    monkeypatch.setattr(checkpoint, "find_device", lambda name: torch.device("cuda" if on_gpu else "cpu"))
    monkeypatch.setattr(Model, "to", lambda self, device, dtype: seen.append(dtype) or self)
    load(tmp_path / "model", "auto", "auto")
    assert seen == [getattr(torch, expected)]
    with pytest.raises(ConfigError, match="auto, float32, bfloat16"):
        load(tmp_path / "model", dtype="float16")

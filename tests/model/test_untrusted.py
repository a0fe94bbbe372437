"""Language models made to do harm: no code of theirs runs, and nothing is built from absurd numbers."""

import io
import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.evaluate.test_language_models import SHAPE

from dadlm.cli import main
from dadlm.errors import CheckpointError, DadlmError
from dadlm.evaluate.language_models import open_language_model
from dadlm.model.untrusted import check_gguf, read_json

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    config = transformers.LlamaConfig(**SHAPE, num_key_value_heads=2)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def changed(source: Path, target: Path, **changes: Any) -> Path:
    """A copy of a folder with another config.json."""
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((source / "config.json").read_text()) | changes
    (target / "config.json").write_text(json.dumps(config))
    return target


def evil(llama: Path, folder: Path, where: str) -> Path:
    """A folder whose code leaves a trace, asked for by its configuration or by its tokenizer."""
    kinds = {auto: f"modeling_evil.{auto}" for auto in ("AutoConfig", "AutoModel", "AutoModelForCausalLM")}
    own = {"model_type": "evil", "architectures": ["EvilForCausalLM"], "auto_map": kinds}
    changed(llama, folder, **(own if where == "config" else {}))
    tokenizer = {"tokenizer_class": "EvilTokenizer", "auto_map": {"AutoTokenizer": ["modeling_evil.T", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (folder / "modeling_evil.py").write_text(f"open({str(folder / 'trace')!r}, 'w').write('run')\n")
    return folder


@pytest.mark.parametrize("where", ["config", "tokenizer"])
@pytest.mark.parametrize(
    "words",
    [
        ["convert", "EVIL", "--from-causal", "--out", "OUT"],
        ["evaluate", "judge", "--planted", "TEXT", "--judge", "EVIL", "--out", "OUT"],
        ["evaluate", "generation", "--data", "TEXT", "--embedder", "none", "--judge-lm", "EVIL"],
    ],
    ids=["convert", "judge", "judge-lm"],
)
def test_code_of_a_folder_never_runs(
    where: str, words: list[str], llama: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    """Also not where standard input says yes to whatever is asked."""
    text = tmp_path / "text.txt"
    text.write_text("some words of a text " * 200)
    folder = evil(llama, tmp_path / "evil", where)
    places = {"EVIL": str(folder), "OUT": str(tmp_path / "out"), "TEXT": str(text)}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 50))
    assert main([places.get(word, word) for word in words]) == 2
    assert "dadlm never runs: choose a model" in capsys.readouterr().err
    assert not (folder / "trace").exists()


def test_the_harness_cannot_ask_for_it_either() -> None:
    pytest.importorskip("lm_eval")
    from dadlm.interop.lm_eval import HarnessModel

    with pytest.raises(DadlmError, match="never runs"):
        HarnessModel("dadlm", trust_remote_code=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": 10**400},
        {"num_hidden_layers": 300},
        {"hidden_size": 2**22},
        {"vocab_size": 2**24},
        {"max_position_embeddings": 2**31},
        {"rms_norm_eps": float("nan")},
        {"rope_theta": float("inf")},
        {"attn_implementation": "someone/kernel"},
    ],
    ids=lambda changes: "-".join(f"{k}={str(v)[:12]}" for k, v in changes.items()),
)
def test_absurd_numbers_are_refused_before_anything_is_built(
    changes: dict[str, Any], llama: Path, tmp_path: Path
) -> None:
    folder = changed(llama, tmp_path / "changed", **changes)
    with pytest.raises(DadlmError, match=r"config\.json|do not belong together"):
        open_language_model(str(folder))


@pytest.mark.parametrize(
    "text", ['{"a": ' + "[" * 40 + "]" * 40 + "}", '{"a": ' + "1" * 5000 + "}", " " * (5 << 20), "[]", "{"]
)
def test_json_is_bounded(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_json(tmp_path / "config.json")


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def number(name: str, value: int) -> bytes:
    return string(name) + struct.pack("<IQ", 10, value)


def tensor(name: str, *shape: int) -> bytes:
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, 0)


def gguf(
    blocks: int = 1, width: int = 8, tensors: int = 2, fields: int = 3, rows: int = 4, more: bytes = b""
) -> bytes:
    """A GGUF file of one block and width 8, unless its header lies."""
    content = struct.pack("<4sIQQ", b"GGUF", 3, tensors, fields)
    content += string("general.architecture") + struct.pack("<I", 8) + string("llama")
    content += number("llama.block_count", blocks) + number("llama.embedding_length", width) + more
    content += tensor("token_embd.weight", 8, rows) + tensor("blk.0.ffn_norm.weight", 8)
    return content + bytes(256)


ENDLESS = string("llama.endless") + struct.pack("<IIQ", 9, 0, 2**60)
LONG = string("llama.long") + struct.pack("<IQ", 8, 2**62)


def test_a_sound_gguf_header_is_taken(tmp_path: Path) -> None:
    (tmp_path / "good.gguf").write_bytes(gguf())
    check_gguf(tmp_path / "good.gguf")


@pytest.mark.parametrize(
    "content",
    [
        gguf(blocks=2**31 - 1),
        gguf(blocks=2),
        gguf(width=2**31 - 1),
        gguf(width=16),
        gguf(tensors=2**60),
        gguf(fields=2**60),
        gguf(fields=40),
        gguf(rows=2**40),
        gguf(fields=4, more=number("llama.context_length", 2**31 - 1)),
        gguf(fields=4, more=ENDLESS),
        gguf(fields=4, more=LONG),
        gguf(fields=4, more=string("llama.kind") + struct.pack("<I", 77)),
        gguf()[:60],
        b"GGUF",
        b"",
    ],
)
def test_a_gguf_header_that_lies(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "bad.gguf"
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="no GGUF file that can be used"):
        open_language_model(str(file))

"""Gated adapters apart from their base: the same model in a small folder, and no other base."""

import json
import shutil
from pathlib import Path

import pytest
import tokenizers
import torch
from tests.commands import Cli, refused
from tests.model.test_causal import saved

import dadlm
from dadlm.errors import CheckpointError, ConfigError
from dadlm.model import Model
from dadlm.model.adapters import save_adapters
from dadlm.model.causal import convert_causal
from dadlm.model.checkpoint import weights
from dadlm.model.files import load_tensors, save_tensors
from dadlm.tokens import Tokenizer

pytest.importorskip("transformers")


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """A base, and a model with adapters that have learned something; both as folders."""
    monkeypatch.chdir(tmp_path)
    theirs = str(saved(tmp_path / "theirs"))
    convert_causal(theirs, "base", family="ar", context=64)
    model = convert_causal(theirs, "start", block_size=4, context=64, lora=16, gated=True)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_" in name or name.endswith("mask_change"):
                parameter += 0.1 * torch.randn(parameter.shape)
    dadlm.save(model, "model")
    return dadlm.load("model")


def same(one: Model, other: Model, by: float = 0) -> bool:
    pairs = zip(weights(one).items(), weights(other).values(), strict=True)
    return all(torch.allclose(a, b, atol=by, rtol=0) for (_, a), b in pairs)


def test_a_small_folder_is_the_whole_model(trained: Model) -> None:
    save_adapters("model", "base", "small")
    assert {file.name for file in Path("small").iterdir()} == {"config.json", "model.safetensors"}
    stored = load_tensors(Path("small/model.safetensors"))
    assert stored and all(".lora_" in name or name == "backbone.mask_change" for name in stored)
    model = dadlm.load("small")
    assert same(model, trained) and model.config == trained.config and model.tokenizer == trained.tokenizer
    how = {"max_new_tokens": 12, "seed": 1}
    for mode in ("diffusion", "ar", "lossless"):
        told = dadlm.generate("./small", ["The cat"], mode=mode, **how)  # type: ignore[arg-type]
        assert told.tokens == dadlm.generate(trained, ["The cat"], mode=mode, **how).tokens  # type: ignore[arg-type]
    dadlm.save(model, "whole")
    assert same(dadlm.load("whole"), trained)


@pytest.mark.parametrize("base_bits", [32, 8])
def test_8_bits(base_bits: int, trained: Model) -> None:
    """The adapters lose a little, the base nothing; a base in 8 bits has its own adapters."""
    base = "base"
    if base_bits == 8:
        dadlm.save(dadlm.load("base"), "base8", bits=8)
        trained.load_state_dict(weights(dadlm.load("base8")), strict=False)
        dadlm.save(trained, "model")
        base = "base8"
    save_adapters("model", base, "small", bits=8)
    model = dadlm.load("small")
    assert same(model, trained, by=0.01) and not same(model, trained)
    kept = weights(dadlm.load(base))
    assert all(torch.equal(weights(model)[name], tensor) for name, tensor in kept.items())


def test_another_base_is_refused(trained: Model, tmp_path: Path) -> None:
    save_adapters("model", "base", "small")
    other = dadlm.load("base")
    with torch.no_grad():
        other.backbone.norm.weight[0] += 1e-3
    dadlm.save(other, "other")
    with pytest.raises(
        CheckpointError, match=r"was not trained on other: 1 of its \d+ .*backbone.norm.weight"
    ):
        save_adapters("model", "other", "again")
    shutil.rmtree("base")
    shutil.copytree("other", "base")
    with pytest.raises(CheckpointError, match=r"trained on other weights .*--adapters .*base --out small"):
        dadlm.load("small")
    shutil.rmtree("base")
    with pytest.raises(CheckpointError, match="no such model is here: put its folder there, or write where"):
        dadlm.load("small")


def test_a_base_with_other_words_is_refused(trained: Model) -> None:
    other = dadlm.load("base")
    assert other.tokenizer is not None
    inner = tokenizers.Tokenizer.from_str(other.tokenizer._inner.to_str())
    inner.normalizer = tokenizers.normalizers.Lowercase()
    other.tokenizer = Tokenizer(inner)
    dadlm.save(other, "other")
    with pytest.raises(CheckpointError, match="another tokenizer"):
        save_adapters("model", "other", "small")


@pytest.mark.parametrize("base", ["base", "run"])
@pytest.mark.parametrize("out", ["base", "./model/../base", "link", "model"])
def test_what_is_read_is_not_replaced(out: str, base: str, trained: Model) -> None:
    """Adapters in the place of their base would be all that is left of it."""
    Path("link").symlink_to("base")
    Path("run").mkdir()
    Path("run/best").symlink_to("../base")
    before = {file: file.read_bytes() for file in Path().glob("*/*") if file.is_file()}
    with pytest.raises(ConfigError, match=r"is read from.*name another folder"):
        save_adapters("model", base, out)
    assert before == {file: file.read_bytes() for file in Path().glob("*/*") if file.is_file()}


@pytest.mark.parametrize("base", ["start", "small"])
def test_a_base_with_adapters_is_refused(base: str, trained: Model) -> None:
    """What would be written has no base that can be opened, or holds nothing."""
    save_adapters("model", "base", "small")
    with pytest.raises(ConfigError, match="has adapters itself: name the model that it was converted from"):
        save_adapters("model", base, "again")


def test_nor_is_the_base_of_what_is_read(trained: Model) -> None:
    save_adapters("model", "base", "small")
    shutil.copytree("base", "same")
    with pytest.raises(ConfigError, match="is read from"):
        save_adapters("small", "same", "base")
    save_adapters("small", "same", "moved")
    assert same(dadlm.load("moved"), trained)


@pytest.mark.parametrize(
    "name", [None, 7, "owner/model", "small", "../outside", "nothing", "x" * 300, "x/" * 3000, "\0"]
)
def test_what_a_file_may_name_as_base(name: object, trained: Model) -> None:
    """Nothing is fetched, and nothing goes round in circles."""
    save_adapters("model", "base", "small")
    file = Path("small/config.json")
    about = json.loads(file.read_text())
    file.write_text(json.dumps(about | {"base": {"model": name, "weights_sha256": "0"}}))
    with pytest.raises(CheckpointError, match="no such model is here"):
        dadlm.load("small")


@pytest.mark.parametrize("about", ["base", ["base"], 7, {}])
def test_a_base_is_an_object_with_a_name(about: object, trained: Model) -> None:
    save_adapters("model", "base", "small")
    file = Path("small/config.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"base": about}))
    with pytest.raises(CheckpointError, match="no such model is here"):
        dadlm.load("small")


def test_adapters_replace_no_weights_of_their_base(trained: Model) -> None:
    save_adapters("model", "base", "small")
    file, norm = Path("small/model.safetensors"), "backbone.norm.weight"
    save_tensors(load_tensors(file) | {norm: weights(trained)[norm] + 1}, file)
    with pytest.raises(CheckpointError, match="its base has too"):
        dadlm.load("small")


def test_the_command(cli: Cli, trained: Model) -> None:
    told = cli("convert", "model", "--adapters", "base", "--out", "small", "--json").json
    assert told["family"] == "bd3lm" and same(dadlm.load("small"), trained)
    assert cli("convert", "model", "--adapters", "base", "--bits", 8, "--out", "small8").code == 0
    sizes = [Path(name, "model.safetensors").stat().st_size for name in ("model", "small", "small8")]
    assert sizes[0] > sizes[1] > sizes[2]
    refused(cli("convert", "base", "--adapters", "base", "--out", "x"), "no gated adapters")
    refused(cli("convert", "model", "--bits", 8, "--out", "x"), "--bits belongs to --adapters")
    for other in (("--to", "dadlm"), ("--block-size", 8), ("--moments",)):
        told = cli("convert", "model", "--adapters", "base", *other, "--out", "x")
        refused(told, "--out and --bits alone")

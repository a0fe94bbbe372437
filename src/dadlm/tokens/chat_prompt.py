"""Messages → the ids of a prompt, in which text that people write never becomes a special token.

The whole conversation is encoded at once, because some tokenizers encode a word by what stands before it.
Meanwhile the special tokens that the template wrote are spelled in another way, which nobody can guess, and
their usual spelling is plain text.
"""

import json
import re
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import tokenizers

from dadlm.errors import DataError
from dadlm.tokens.chat import ChatTemplate, Message, check_messages

if TYPE_CHECKING:
    from dadlm.tokens.tokenizer import Tokenizer


class ChatPrompts:
    """Makes prompts for one tokenizer and its template."""

    def __init__(self, tokenizer: "Tokenizer", chat: ChatTemplate) -> None:
        self._chat, self._special = chat, _special(tokenizer, chat)
        names = _any_of(sorted(self._special, key=len, reverse=True))
        self._name = re.compile(f"({names})")
        # Ignoring case: the template's filters might change that of messages.
        self._spelled = re.compile(names, re.IGNORECASE)
        ends = {name[end] for name in self._special for end in (0, -1)}
        self._ends = re.compile(_any_of(sorted(ends)), re.IGNORECASE)
        self._encoder = _Encoder(tokenizer, self._special)

    def ids(self, messages: Sequence[Message]) -> list[int]:
        check_messages(messages)
        return self._encoder.ids(self._pieces(messages))

    def _pieces(self, messages: Sequence[Message]) -> list[str]:
        """The rendered conversation, cut at the special tokens: every second piece is one.

        Messages without the characters that special tokens begin and end with cannot become one, whatever the
        template does. So these characters are hidden while the template is at work; only if that changes what
        it writes, whole tokens are hidden instead.
        """
        pieces = self._rendered(messages, self._spelled)
        if any(self._ends.search(message["content"]) for message in messages):
            with suppress(DataError):
                surely = self._rendered(messages, self._ends)
                return surely if "".join(surely) == "".join(pieces) else pieces
        return pieces

    def _rendered(self, messages: Sequence[Message], hidden: re.Pattern[str]) -> list[str]:
        """The pieces; while the template is at work, unused characters stand in for what matches `hidden` in
        the messages."""
        unused = self._unused(messages)
        stand_in = defaultdict[str, str](lambda: next(unused))
        plain: list[Message] = [
            {"role": one["role"], "content": hidden.sub(lambda found: stand_in[found[0]], one["content"])}
            for one in messages
        ]
        pieces = self._name.split(self._chat.render(plain))
        written = str.maketrans({character: text for text, character in stand_in.items()})
        return [piece.translate(written) for piece in pieces]

    def _unused(self, messages: Sequence[Message]) -> Iterator[str]:
        """Characters for private use that occur nowhere in a conversation."""
        said = set(self._chat.text).union(*self._special, *(message["content"] for message in messages))
        yield from (character for character in map(chr, range(0xF0000, 0x110000)) if character not in said)
        raise DataError("the messages hold every character that Unicode has for private use: shorten them")


class _Encoder:
    """Encodes a text that is cut at its special tokens as the tokenizer would encode the whole."""

    def __init__(self, tokenizer: "Tokenizer", special: dict[str, int]) -> None:
        content = tokenizer._inner.to_str()
        inner = tokenizers.Tokenizer.from_str(content)
        added, key = inner.get_added_tokens_decoder(), secrets.token_hex(16)
        self._special = special
        self._spelling = {name: f"\U000f0000{key} {id_}\U000f0000" for name, id_ in special.items()}
        # A `Tokenizer` encodes the spelling of special tokens as plain text. The new spellings are added
        # tokens that are not special, which it does recognise.
        inner.add_special_tokens([added[id_] for id_ in special.values()])
        inner.add_tokens([_spelled(added[id_], self._spelling[name]) for name, id_ in special.items()])
        self._id = {inner.token_to_id(self._spelling[name]): id_ for name, id_ in special.items()}
        self._unknown = _unknown(inner, json.loads(content)["model"])
        self._inner = type(tokenizer)(inner)

    def ids(self, pieces: Sequence[str]) -> list[int]:
        text = "".join(self._spelling[piece] if at % 2 else piece for at, piece in enumerate(pieces))
        ids = [self._id.get(id_, id_) for id_ in self._inner.encode(text)]
        found, written = Counter(ids), Counter(pieces[1::2])
        for name, id_ in self._special.items():
            if found[id_] > written[name] and id_ != self._unknown:
                raise DataError(
                    f"the messages spell {name}, which this tokenizer can only write as the special token: "
                    "leave it out"
                )
        return ids


def _special(tokenizer: "Tokenizer", chat: ChatTemplate) -> dict[str, int]:
    """The ids of the special tokens, and of those that the template has a name for, by their spelling."""
    added = tokenizer._inner.get_added_tokens_decoder()
    spelled = {token.content: id_ for id_, token in added.items()}
    named = {name: spelled[name] for name in (chat.bos_token, chat.eos_token) if name in spelled}
    return {name: id_ for name, id_ in (tokenizer.special_ids | named).items() if name}


def _spelled(token: tokenizers.AddedToken, spelling: str) -> tokenizers.AddedToken:
    """A token that takes as much of the space around it, under another spelling."""
    space = {"lstrip": token.lstrip, "rstrip": token.rstrip}
    return tokenizers.AddedToken(spelling, normalized=False, special=False, **space)


def _unknown(inner: tokenizers.Tokenizer, model: dict[str, Any]) -> int | None:
    """The token for unknown words: the one special token that any text may become."""
    name = model.get("unk_token")
    return inner.token_to_id(name) if isinstance(name, str) else model.get("unk_id")


def _any_of(texts: Sequence[str]) -> str:
    return "|".join(map(re.escape, texts)) or "(?!)"

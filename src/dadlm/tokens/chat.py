"""A chat template, which turns the messages of a conversation into one text, and its files.

`chat_sandbox` renders it, `chat_prompt` encodes the result. Knows nothing of tokenizers and models.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

from dadlm.errors import DataError

ANSWER_TOKENS = 512
"""The longest answer, unless the caller gives a length."""
FILE = "tokenizer_config.json"
"""Where Hugging Face keeps a template, beside tokenizer.json."""
ALONE = "chat_template.jinja"
"""Where transformers 5 keeps it instead; tokenizer_config.json still names the tokens."""
_MOST_BYTES = 4 << 20  # of each file
_MOST_TEMPLATE = 1 << 16  # characters; the long ones in use have 20,000
_NAMED = ("bos_token", "eos_token")
Role = Literal["system", "user", "assistant"]
ROLES = ("system", "user", "assistant")


class Message(TypedDict):
    """One message of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    text: str
    """Jinja, given Hugging Face's names: messages, add_generation_prompt, bos_token, eos_token; tools and
    documents, both none."""
    bos_token: str = ""
    """The token that begins a text, as it is spelled."""
    eos_token: str = ""
    """The token that ends a turn."""

    def __post_init__(self) -> None:
        if len(self.text) > _MOST_TEMPLATE:
            raise DataError(
                f"the chat template has {len(self.text):,} characters, more than {_MOST_TEMPLATE:,}: "
                f"remove chat_template from {FILE}, or {ALONE}, and the model is used without a chat"
            )

    def render(self, messages: Sequence[Message]) -> str:
        """The conversation as one text, up to where the answer begins."""
        from dadlm.tokens.chat_sandbox import render  # here: most models have no template

        names: dict[str, Any] = {name: getattr(self, name) for name in _NAMED}
        # Templates ask whether these are none, and an undefined name is not.
        names |= {"tools": None, "documents": None}
        return render(self.text, names | {"messages": messages, "add_generation_prompt": True})

    def write(self, folder: Path) -> None:
        settings = {"chat_template": self.text} | {name: getattr(self, name) for name in _NAMED}
        text = json.dumps({name: value for name, value in settings.items() if value}, indent=2)
        (folder / FILE).write_text(text + "\n", encoding="utf-8")
        (folder / ALONE).unlink(missing_ok=True)  # an older one would win

    @classmethod
    def read(cls, folder: Path) -> "ChatTemplate | None":
        """The template of a folder; None if it has none."""
        settings = _settings(folder / FILE)
        template = _content(folder / ALONE)
        template = settings.get("chat_template") if template is None else template
        return cls.of(template, *(settings.get(name) for name in _NAMED))

    @classmethod
    def of(cls, template: object, bos: object = None, eos: object = None) -> "ChatTemplate | None":
        """From the values of tokenizer_config.json, or of a tokenizer of transformers; of several templates,
        the one named default."""
        if isinstance(template, list):
            named = (one for one in template if isinstance(one, dict) and one.get("name") == "default")
            template = next(named, None)
            template = template and template.get("template")
        if isinstance(template, dict):
            template = template.get("default")
        if not isinstance(template, str) or not template:
            return None
        return cls(text=template, bos_token=_spelling(bos), eos_token=_spelling(eos))


def check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    if not messages:
        raise DataError('no messages: give at least one, {"role": "user", "content": "..."}')
    for message in messages:
        if message.get("role") not in ROLES or not isinstance(message.get("content"), str):
            raise DataError(
                f"a message has a role, one of {', '.join(ROLES)}, and a content, which is text; "
                f"got {str(message)[:80]}"
            )


def _settings(file: Path) -> dict[str, Any]:
    """The content of a tokenizer_config.json; empty if there is none."""
    written = _content(file)
    try:
        content = {} if written is None else json.loads(written)
        if not isinstance(content, dict):
            raise ValueError("not an object")
        return content
    except (ValueError, RecursionError) as error:
        raise _unreadable(file, error) from error


def _content(file: Path) -> str | None:
    try:
        if not file.is_file():
            return None
        if (size := file.stat().st_size) > _MOST_BYTES:
            raise ValueError(f"{size:,} bytes, more than {_MOST_BYTES:,}")
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> DataError:
    return DataError(f"{file} cannot be read: {error}; get it again, or remove it")


def _spelling(token: object) -> str:
    """A token's text; Hugging Face writes some tokens as objects with settings."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else ""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from dadlm.tokens import Tokenizer, gpt2, train_bpe

_TEXT = "the a one red blue river runs under over slow bridge and then stops near Köln 東京 🙂 2024 it's"
WORDS = _TEXT.split()


def _prose(characters: int) -> str:
    """Text that does not repeat itself, so that a piece in the wrong place shows; lines of eleven words."""
    words, size, n = [], 0, 7
    while size < characters:
        n = (n * 1103515245 + 12345) % 2**31
        words.append(WORDS[(n >> 16) % len(WORDS)] + ("\n" if len(words) % 11 == 10 else ""))
        size += len(words[-1]) + 1
    return " ".join(words)


def write_jsonl(file: Path, texts: Iterable[str]) -> Path:
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return file


@pytest.fixture(scope="session")
def bpe() -> Tokenizer:
    return train_bpe([_prose(20_000)], 320, show_progress=False)


@pytest.fixture(scope="session")
def gpt2_bpe() -> Tokenizer:
    return gpt2()


@pytest.fixture(scope="session")
def prose() -> Callable[[int], str]:
    return _prose

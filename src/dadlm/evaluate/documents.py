"""Documents with their summaries: JSON Lines of {"document", "summary"} or {"prompt", "completion"}.

A line that is no such pair (not UTF-8, not JSON, a text missing or empty) is left out and named, or stops the
reading where that is wished. Knows nothing of tokens or models.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dadlm.errors import DataError
from dadlm.evaluate.jsonl import find_jsonl, lines_of, record_of
from dadlm.tokens import field_of

_NAMES = (("document", "summary"), ("prompt", "completion"))


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Pairs of a document and its summary."""

    pairs: tuple[tuple[str, str], ...]
    source: str = ""
    """Where they come from, in words."""
    skipped: tuple[str, ...] = ()
    """What was wrong with each line left out; each begins with file and line number."""

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for pair in self.pairs:
            for text in pair:
                digest.update(text.encode() + b"\0")
        return digest.hexdigest()[:16]


def read_documents(
    sources: str | Path | Sequence[str], *, count: int | None = None, strict: bool = False
) -> Documents:
    """The first `count` pairs of files or folders; `strict` stops at the first line that is none."""
    names = [str(sources)] if isinstance(sources, str | Path) else list(sources)
    pairs: list[tuple[str, str]] = []
    skipped: list[str] = []
    for file in [file for name in names for file in find_jsonl(name)]:
        for number, line in lines_of(file):
            if len(pairs) == count:
                break
            try:
                pairs.append(_pair(line, f"{file}, line {number}"))
            except DataError as error:
                if strict:
                    raise DataError(f"{error}; mend or remove the line, or leave out --strict") from None
                skipped.append(str(error))
    if not pairs:
        first = f"; the first line left out: {skipped[0]}" if skipped else ""
        raise DataError(
            f'{" ".join(names)}: no line has "document" and "summary", or "prompt" and "completion"{first}'
        )
    return Documents(pairs=tuple(pairs), source=" ".join(names), skipped=tuple(skipped))


def _pair(line: bytes, where: str) -> tuple[str, str]:
    record = object_of(line, where)
    names = next((names for names in _NAMES if any(name in record for name in names)), _NAMES[0])
    document, summary = (text_of(record, name, where) for name in names)
    return document, summary


def object_of(line: bytes, where: str) -> dict[str, Any]:
    """The JSON object of a line."""
    record = record_of(line, where)
    if not isinstance(record, dict):
        raise DataError(f"{where}: not an object but {type(record).__name__}")
    return record


def text_of(record: dict[str, Any], name: str, where: str) -> str:
    """A text of a record, which must be there and say something."""
    if record.get(name) is None:
        raise DataError(f"{where}: no {name}")
    text = field_of(record, name, where)
    if not text.strip():
        raise DataError(f"{where}: the {name} is empty")
    return text

"""Documents with their summaries from JSON Lines of {"document", "summary"}.

A line that lacks either, or whose text is empty, is left out and its number kept; a line that is not JSON
stops the reading. Knows nothing of tokens or models.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from dadlm.errors import DataError
from dadlm.evaluate.jsonl import find_jsonl, read_jsonl
from dadlm.tokens.records import field_of


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


def read_documents(source: str | Path, *, count: int | None = None) -> Documents:
    """The first `count` usable pairs of a file or folder."""
    pairs: list[tuple[str, str]] = []
    skipped: list[str] = []
    for file in find_jsonl(source):
        for number, record in read_jsonl(file):
            if len(pairs) == count:
                break
            try:
                where = f"{file}, line {number}"
                pairs.append((_text(record, "document", where), _text(record, "summary", where)))
            except DataError as error:
                skipped.append(str(error))
    if not pairs:
        first = f"; the first line left out: {skipped[0]}" if skipped else ""
        raise DataError(f'{source} holds no line with both "document" and "summary"{first}')
    return Documents(pairs=tuple(pairs), source=str(source), skipped=tuple(skipped))


def _text(record: object, name: str, where: str) -> str:
    if not isinstance(record, dict) or record.get(name) is None:
        raise DataError(f"{where}: no {name}")
    text = field_of(record, name, where)
    if not text.strip():
        raise DataError(f"{where}: the {name} is empty")
    return text

"""Pairs to fine-tune on: JSON Lines of {"document", "summary"} or {"prompt", "completion"}, plain or .zst.

A line that is no such pair (not UTF-8, not JSON, a text missing or empty) is left out and named, or stops the
reading where that is wished. Knows nothing of tokens or models.
"""

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dadlm.errors import DataError
from dadlm.evaluate.documents import Documents
from dadlm.evaluate.jsonl import find_jsonl
from dadlm.tokens.records import field_of
from dadlm.tokens.zstd import ZstdReader

_NAMES = (("document", "summary"), ("prompt", "completion"))


def read_pairs(sources: Sequence[str], *, strict: bool = False) -> Documents:
    """All pairs of some files or folders; `strict` stops at the first line that is none."""
    pairs: list[tuple[str, str]] = []
    skipped: list[str] = []
    for file in [file for source in sources for file in find_jsonl(source)]:
        for number, line in lines_of(file):
            try:
                pairs.append(_pair(line, f"{file}, line {number}"))
            except DataError as error:
                if strict:
                    raise DataError(f"{error}; mend or remove the line, or leave out --strict") from None
                skipped.append(str(error))
    if not pairs:
        first = f"; the first line left out: {skipped[0]}" if skipped else ""
        raise DataError(
            f'{" ".join(sources)}: no line has "document" and "summary", or "prompt" and "completion"{first}'
        )
    return Documents(pairs=tuple(pairs), source=" ".join(sources), skipped=tuple(skipped))


def lines_of(file: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines that are not blank, as bytes: one in another encoding must not hide those after it."""
    with file.open("rb") as raw:
        stream = io.BufferedReader(ZstdReader(raw)) if file.suffix == ".zst" else raw
        try:
            yield from ((number, line) for number, line in enumerate(stream, 1) if line.strip())
        except EOFError as error:
            raise DataError(f"{file} is damaged or cut short: {error}; fetch it again") from error


def _pair(line: bytes, where: str) -> tuple[str, str]:
    record = record_of(line, where)
    names = next((names for names in _NAMES if any(name in record for name in names)), _NAMES[0])
    document, summary = (text_of(record, name, where) for name in names)
    return document, summary


def record_of(line: bytes, where: str) -> dict[str, Any]:
    """The JSON object of a line."""
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 ({error.reason} at byte {error.start})") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON ({error})") from None
    if not isinstance(record, dict):
        raise DataError(f"{where}: not an object but {type(record).__name__}")
    return record


def text_of(record: dict[str, Any], name: str, where: str) -> str:
    if record.get(name) is None:
        raise DataError(f"{where}: no {name}")
    text = field_of(record, name, where)
    if not text.strip():
        raise DataError(f"{where}: the {name} is empty")
    return text

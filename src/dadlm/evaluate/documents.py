"""JSON Lines, plain or zstd: numbered lines, and pairs of a document and its summary.

Every error names the file and the line; lines beyond 10 MB are refused, not read.
"""

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dadlm.errors import DataError
from dadlm.tokens import field_of
from dadlm.tokens.zstd import ZstdReader

LONGEST = 10_000_000
"""Bytes of a line."""


def find_jsonl(source: str | Path) -> list[Path]:
    """The file itself, or the .jsonl files of a folder, sorted by name."""
    path = Path(source)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"there is no file or folder {path}")
    found = (file for ending in ("jsonl", "jsonl.zst") for file in path.glob(f"*.{ending}"))
    files = sorted(file for file in found if not file.name.startswith("."))  # half written
    if not files:
        raise DataError(f"folder {path} holds no .jsonl files")
    return files


def read_jsonl(source: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(file and line, record) of a file or folder; the first line that is no object stops the reading."""
    for file in find_jsonl(source):
        for number, line in lines_of(file):
            where = f"{file}, line {number}"
            try:
                yield where, object_of(line, where)
            except DataError as error:
                raise DataError(f"{error}; mend or remove the line") from None


def lines_of(file: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines that are not blank, as bytes: one in another encoding must not hide those after it."""
    with file.open("rb") as raw:
        stream = io.BufferedReader(ZstdReader(raw)) if file.suffix == ".zst" else raw
        try:
            for number, line in enumerate(iter(partial(stream.readline, LONGEST + 2), b""), 1):
                if len(line.rstrip(b"\r\n")) > LONGEST:
                    raise DataError(f"{file}, line {number}: longer than {LONGEST} bytes; cut or remove it")
                if line.strip():
                    yield number, line
        except EOFError as error:
            raise DataError(f"{file} is damaged or cut short: {error}; fetch it again") from error


def object_of(line: bytes, where: str) -> dict[str, Any]:
    """The JSON object in a line."""
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 ({error.reason} at byte {error.start})") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON ({error})") from None
    if not isinstance(record, dict):
        raise DataError(f"{where}: not an object but {type(record).__name__}")
    return record


_FIELDS = (("document", "summary"), ("prompt", "completion"))


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
            where = f"{file}, line {number}"
            try:
                record = object_of(line, where)
                fields = next((two for two in _FIELDS if any(name in record for name in two)), _FIELDS[0])
                pairs.append((text_of(record, fields[0], where), text_of(record, fields[1], where)))
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


def text_of(record: dict[str, Any], name: str, where: str) -> str:
    """A text of a record, which must be there and say something."""
    if record.get(name) is None:
        raise DataError(f"{where}: no {name}")
    text = field_of(record, name, where)
    if not text.strip():
        raise DataError(f"{where}: the {name} is empty")
    return text

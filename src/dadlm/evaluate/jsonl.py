"""JSON Lines: line after line, or record after record, with its number; plain or packed with zstd.

Every complaint names the file and the line; lines beyond 10 MB are refused, not read. Knows nothing of what
the records mean.
"""

import io
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from dadlm.errors import DataError
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


def read_jsonl(file: Path) -> Iterator[tuple[int, Any]]:
    """(line number, record); the first line that is no JSON stops the reading."""
    for number, line in lines_of(file):
        try:
            yield number, record_of(line, f"{file}, line {number}")
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


def record_of(line: bytes, where: str) -> Any:
    """What a line holds."""
    try:
        return json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 ({error.reason} at byte {error.start})") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON ({error})") from None

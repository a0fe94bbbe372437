"""JSON Lines for evaluations: record after record with its line number, plain or packed with zstd.

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
    files = sorted([*path.glob("*.jsonl"), *path.glob("*.jsonl.zst")])
    if not files:
        raise DataError(f"folder {path} holds no .jsonl files")
    return files


def read_jsonl(file: Path) -> Iterator[tuple[int, Any]]:
    """(line number, record); blank lines are passed over."""
    with file.open("rb") as raw:
        stream = io.BufferedReader(ZstdReader(raw)) if file.suffix == ".zst" else raw
        try:
            for number, line in enumerate(iter(partial(stream.readline, LONGEST + 2), b""), 1):
                if len(line.rstrip(b"\r\n")) > LONGEST:
                    raise DataError(f"{file}, line {number}: longer than {LONGEST} bytes; cut or remove it")
                if line.strip():
                    yield number, _record(line, f"{file}, line {number}")
        except EOFError as error:
            raise DataError(f"{file} is damaged or cut short: {error}; fetch it again") from error


def _record(line: bytes, where: str) -> Any:
    try:
        return json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # a wrong byte is a ValueError too
        raise DataError(f"{where}: not valid JSON ({error}); mend or remove the line") from error

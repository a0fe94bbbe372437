"""What a preparation has finished so far: a line for each whole shard, so that a killed run goes on.

A line is added when its shard is safe on the disk. Reading stops at the first line that is torn, or whose
shard is not what the line says: everything from there on is made again.
"""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dadlm.tokens.shards import file_hash, shard_name

JOURNAL = "journal.jsonl"


@dataclass(frozen=True)
class Place:
    """How far a source is in the shards."""

    anchor: Any = None
    """Where reading may begin to come here; see `Piece`."""
    pieces: int = 0
    """Pieces from there on that are in the shards whole."""
    ids: int = 0
    """Ids of the next piece that are in the shards."""
    documents: int = 0
    """Whole documents since the beginning of the source."""
    text_bytes: int = 0
    """UTF-8 bytes of whole pieces since the beginning of the source."""


@dataclass(frozen=True)
class Line:
    """A finished shard, and the place that was reached with it."""

    tokens: int
    sha256: str
    place: Place = field(default_factory=Place)


def read_journal(folder: Path, item_size: int) -> list[Line]:
    """The shards that can be kept; lines after them are dropped from the file."""
    file, lines, good = folder / JOURNAL, [], 0
    if not file.exists():
        return []
    with file.open("r+b") as stream:
        for text in stream:
            line = _parse(text)
            if line is None or not _is_there(folder / shard_name(len(lines)), line, item_size):
                break
            lines.append(line)
            good += len(text)
        stream.truncate(good)
    return lines


def add_line(folder: Path, line: Line) -> None:
    with (folder / JOURNAL).open("ab") as stream:
        stream.write(json.dumps(asdict(line)).encode() + b"\n")
        stream.flush()
        os.fsync(stream.fileno())


def _parse(text: bytes) -> Line | None:
    try:
        content = json.loads(text)
        return Line(**(content | {"place": Place(**content["place"])})) if text.endswith(b"\n") else None
    except (ValueError, TypeError, KeyError):  # cut off by a kill
        return None


def _is_there(file: Path, line: Line, item_size: int) -> bool:
    if not file.is_file() or file.stat().st_size != line.tokens * item_size:
        return False
    return file_hash(file) == line.sha256

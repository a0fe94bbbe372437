"""Finds the results of evaluations: JSON files that name a kind. What is no result is named, not fatal."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from dadlm.errors import DataError

LARGEST = 50_000_000
"""Bytes of a result."""


@dataclass(frozen=True)
class Found:
    """A result and where it lies."""

    file: Path
    result: dict[str, Any]

    @property
    def kind(self) -> str:
        return self.result["kind"]

    @property
    def folder(self) -> str:
        return str(self.file.parent)


@dataclass(frozen=True)
class Skipped:
    """A JSON file that is no result that can be shown, and why."""

    file: Path
    why: str


def gather(places: Iterable[str | Path]) -> tuple[list[Found], list[Skipped]]:
    """Every result below these folders, and among these files, once each."""
    found: list[Found] = []
    skipped: list[Skipped] = []
    for file in _files(places):
        read = _read(file)
        if isinstance(read, str):
            skipped.append(Skipped(file, read))
        else:
            found.append(Found(file, read))
    return found, skipped


def _files(places: Iterable[str | Path]) -> list[Path]:
    files: dict[Path, Path] = {}  # by their true place: a folder and one above it may both be given
    for place in map(Path, places):
        if not place.exists():
            raise DataError(f"{place} does not exist; name folders or files that `dadlm evaluate` wrote")
        for file in sorted(place.rglob("*.json")) if place.is_dir() else [place]:
            if not file.name.startswith("."):  # a file half written
                files.setdefault(file.resolve(), file)
    return list(files.values())


def _read(file: Path) -> dict[str, Any] | str:
    """The result in a file, or why there is none."""
    try:
        if (size := file.stat().st_size) > LARGEST:
            return f"too large: {size:,} bytes, more than {LARGEST:,}"
        result = json.loads(file.read_text(encoding="utf-8"), parse_constant=_refuse)
    except (OSError, ValueError, RecursionError) as error:
        return f"cannot be read: {error}"
    if not isinstance(result, dict) or not isinstance(result.get("kind"), str):
        return "no evaluation"
    return result


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")

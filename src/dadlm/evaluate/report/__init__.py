"""All results on one page: the paper's tables with the paper's numbers beside ours.

`report` finds the JSON that evaluations wrote and makes one HTML page that needs nothing beside it and one
Markdown file. It measures nothing and opens no model. A kind of evaluation has a module here with a function
`section`.
"""

import json
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from dadlm.errors import DataError
from dadlm.evaluate.report.document import Found, Section, Skipped, Table, in_short
from dadlm.evaluate.report.render import render
from dadlm.evaluate.work import KINDS, whole_file

__all__ = ["report", "sections_of"]

LARGEST = 50_000_000
"""Bytes of a result."""


def report(places: Iterable[str | Path], out: str | Path = "report") -> dict[str, Any]:
    """Write the results of folders and files to `out`/index.html and `out`/report.md; say what was found."""
    places = list(places)
    gathered, skipped = _gather(places)
    problems = {one.file: _problem(one) for one in gathered}
    found = [one for one in gathered if not problems[one.file]]
    skipped += [Skipped(file, why) for file, why in problems.items() if why]
    if not found:
        raise DataError(
            f"no results in {', '.join(map(str, places)) or 'no folder'}: "
            "name a folder into which `dadlm evaluate KIND --out FOLDER` wrote"
        )
    sections = sections_of(found)
    page, text = Path(out) / "index.html", Path(out) / "report.md"
    for file, template in ((page, "page.html"), (text, "report.md")):
        with whole_file(file) as handle:
            # Names of files and models need not be Unicode.
            handle.write(render(template, sections, found, skipped).encode("utf-8", "replace"))
    return {
        "kind": "report",
        "page": str(page),
        "markdown": str(text),
        "results": [{"file": str(one.file), "kind": one.kind} for one in found],
        "skipped": [{"file": str(one.file), "why": one.why} for one in skipped],
        "tables": [part.caption for section in sections for part in section.parts if isinstance(part, Table)],
        "in_short": in_short(sections),
    }


def sections_of(found: list[Found]) -> list[Section]:
    """One for each kind that was found, in the paper's order."""
    by_kind = {kind: [one for one in found if one.kind == kind] for kind in KINDS}
    return [import_module(f"{__name__}.{kind}").section(some) for kind, some in by_kind.items() if some]


def _problem(one: Found) -> str:
    """Why a result cannot be shown, or "". It may come from another version, or an editor."""
    if one.kind not in KINDS:
        return f"unknown kind {one.kind[:40]!r}"
    try:
        for template in ("page.html", "report.md"):
            render(template, sections_of([one]), [one], [])
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        return f"not a {one.kind} that can be shown ({type(error).__name__}: {str(error)[:80]})"
    return ""


def _gather(places: Iterable[str | Path]) -> tuple[list[Found], list[Skipped]]:
    """Every result below these folders, and among these files, once each; other JSON is named, not fatal."""
    found: list[Found] = []
    skipped: list[Skipped] = []
    for file in _files(places):
        try:
            if (size := file.stat().st_size) > LARGEST:
                skipped.append(Skipped(file, f"too large: {size:,} bytes, more than {LARGEST:,}"))
                continue
            result = json.loads(file.read_text(encoding="utf-8"), parse_constant=_refuse)
        except (OSError, ValueError, RecursionError) as error:
            skipped.append(Skipped(file, f"cannot be read: {error}"))
            continue
        if isinstance(result, dict) and isinstance(result.get("kind"), str):
            found.append(Found(file, result))
        else:
            skipped.append(Skipped(file, "no evaluation"))
    return found, skipped


def _files(places: Iterable[str | Path]) -> list[Path]:
    files: dict[Path, Path] = {}  # by their true place: a folder and one above it may both be given
    for place in map(Path, places):
        if not place.exists():
            raise DataError(f"{place} does not exist; name folders or files that `dadlm evaluate` wrote")
        for file in sorted(place.rglob("*.json")) if place.is_dir() else [place]:
            if not file.name.startswith("."):  # being written
                files.setdefault(file.resolve(), file)
    return list(files.values())


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")

"""All results on one page: the paper's tables with the paper's numbers beside ours.

`report` finds the JSON that evaluations wrote and makes one HTML page that needs nothing beside it and one
Markdown file. It measures nothing and opens no model.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dadlm.errors import DataError
from dadlm.evaluate.report import (
    generation,
    judge,
    latency,
    perplexity,
    reconstruction,
    summarisation,
)
from dadlm.evaluate.report.document import Section, Table, in_short
from dadlm.evaluate.report.gather import Found, Skipped, gather
from dadlm.evaluate.report.render import render
from dadlm.evaluate.work import whole_file

__all__ = ["report"]

_BUILDERS: dict[str, Callable[[list[Found]], Section]] = {
    "reconstruction": reconstruction.section,
    "perplexity": perplexity.section,
    "generation": generation.section,
    "judge": judge.section,
    "summarisation": summarisation.section,
    "latency": latency.section,
}
"""By kind, in the paper's order."""


def report(places: Iterable[str | Path], out: str | Path = "report") -> dict[str, Any]:
    """Gather results from folders and files into `out`/index.html and `out`/report.md; say what was found."""
    places = list(places)
    gathered, skipped = gather(places)
    why = {one.file: _hindrance(one) for one in gathered}
    found = [one for one in gathered if not why[one.file]]
    skipped += [Skipped(file, told) for file, told in why.items() if told]
    if not found:
        raise DataError(
            f"no results in {', '.join(map(str, places)) or 'no folder'}: "
            "name a folder into which `dadlm evaluate KIND --out FOLDER` wrote"
        )
    sections = _sections(found)
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


def _hindrance(one: Found) -> str:
    """Why a result cannot be shown; empty: it can. It may come from another version, or an editor."""
    if one.kind not in _BUILDERS:
        return f"unknown kind {one.kind[:40]!r}"
    try:
        sections = _sections([one])
        for template in ("page.html", "report.md"):
            render(template, sections, [one], [])
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        return f"not a {one.kind} that can be shown ({type(error).__name__}: {str(error)[:80]})"
    return ""


def _sections(found: list[Found]) -> list[Section]:
    """One for each kind that was found."""
    by_kind = {kind: [one for one in found if one.kind == kind] for kind in _BUILDERS}
    return [build(by_kind[kind]) for kind, build in _BUILDERS.items() if by_kind[kind]]

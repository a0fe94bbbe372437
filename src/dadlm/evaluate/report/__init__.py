"""All results on one page: the paper's tables with the paper's numbers beside ours.

`report` finds the JSON that evaluations wrote and makes one HTML page that needs nothing beside it and one
Markdown file. It measures nothing and opens no model.
"""

from collections.abc import Iterable
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
from dadlm.evaluate.report.document import Section, Table
from dadlm.evaluate.report.gather import Found, gather
from dadlm.evaluate.report.markdown import to_markdown
from dadlm.evaluate.report.page import to_html

__all__ = ["report"]


def report(places: Iterable[str | Path], out: str | Path = "report") -> dict[str, Any]:
    """Gather results from folders and files into `out`/index.html and `out`/report.md; say what was found."""
    places = list(places)
    found, skipped = gather(places)
    if not found:
        raise DataError(
            f"no results in {', '.join(map(str, places)) or 'no folder'}: "
            "name a folder into which `dadlm evaluate KIND --out FOLDER` wrote"
        )
    sections = _sections(found)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    page, text = folder / "index.html", folder / "report.md"
    # Names of files and models need not be Unicode.
    page.write_text(to_html(sections, found, skipped), encoding="utf-8", errors="replace")
    text.write_text(to_markdown(sections, found, skipped), encoding="utf-8", errors="replace")
    return {
        "kind": "report",
        "page": str(page),
        "markdown": str(text),
        "results": [{"file": str(one.file), "kind": one.kind} for one in found],
        "skipped": [{"file": str(one.file), "why": one.why} for one in skipped],
        "tables": [part.caption for section in sections for part in section.parts if isinstance(part, Table)],
        "in_short": [line for section in sections for line in section.short],
    }


def _sections(found: list[Found]) -> list[Section]:
    """One for each kind that was found, in the paper's order."""
    by_kind: dict[str, list[Found]] = {}
    for one in found:
        by_kind.setdefault(one.kind, []).append(one)
    builders = {
        "reconstruction": reconstruction.section,
        "perplexity": perplexity.section,
        "generation": generation.section,
        "judge": judge.section,
        "summarisation": summarisation.section,
        "latency": latency.section,
    }
    return [build(by_kind[kind]) for kind, build in builders.items() if kind in by_kind]

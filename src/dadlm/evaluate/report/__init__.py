"""All results on one page: the paper's tables with the paper's numbers beside ours.

`report` finds the JSON that evaluations wrote and makes one Markdown file and one HTML page, without scripts,
that needs nothing beside it. A kind of evaluation has a module here with a function `section`.
"""

import html
import json
import re
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dadlm.errors import DataError
from dadlm.evaluate.report.document import Found, Section, Table, in_short
from dadlm.model.files import whole_file
from dadlm.model.untrusted import refuse_constant
from dadlm.tokens.readers import check_regular

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["report", "sections_of"]

LARGEST = 50_000_000
"""Bytes of a result."""
_SECTIONS = tomllib.loads(Path(__file__).with_name("sections.toml").read_text(encoding="utf-8"))
_MARKUP = re.compile(r"([\\`*_\[\]|#~$])")


def report(places: Iterable[str | Path], out: str | Path = "report") -> dict[str, Any]:
    """Write the results of folders and files to `out`/index.html and `out`/report.md; say what was found."""
    places = list(places)
    found: list[Found] = []
    skipped: list[dict[str, str]] = []
    for file in _files(places):
        try:
            found.append(_read(file))
        except ValueError as error:
            skipped.append({"file": str(file), "why": str(error)})
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
            handle.write(_render(template, sections, found, skipped).encode("utf-8", "replace"))
    return {
        "kind": "report",
        "page": str(page),
        "markdown": str(text),
        "results": [{"file": str(one.file), "kind": one.kind} for one in found],
        "skipped": skipped,
        "tables": [part.caption for section in sections for part in section.parts if isinstance(part, Table)],
        "in_short": in_short(sections),
    }


def sections_of(found: list[Found]) -> list[Section]:
    """One for each kind that was found, in the paper's order."""
    sections = []
    for kind, text in _SECTIONS.items():
        if some := [one for one in found if one.kind == kind]:
            parts, short = import_module(f"{__name__}.{kind}").section(some)
            sections.append(Section(kind=kind, parts=parts, short=short, **text))
    return sections


def _read(file: Path) -> Found:
    """A result that can be shown; it may come from another version, or an editor. ValueError says why not."""
    try:
        check_regular(file)
        if (size := file.stat().st_size) > LARGEST:
            raise ValueError(f"too large: {size:,} bytes, more than {LARGEST:,}")
        result = json.loads(file.read_text(encoding="utf-8"), parse_constant=refuse_constant)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"cannot be read: {error}") from None
    if not isinstance(result, dict) or not isinstance(result.get("kind"), str):
        raise ValueError("no evaluation")
    found = Found(file, result)
    if found.kind not in _SECTIONS:
        raise ValueError(f"unknown kind {found.kind[:40]!r}")
    try:
        for template in ("page.html", "report.md"):
            _render(template, sections_of([found]), [found], [])
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        why = f"not a {found.kind} that can be shown ({type(error).__name__}: {str(error)[:80]})"
        raise ValueError(why) from None
    return found


def _files(places: Iterable[str | Path]) -> list[Path]:
    """Every JSON file among these and below these folders, once."""
    files: dict[Path, Path] = {}  # by their true place: a folder and one above it may both be given
    for place in map(Path, places):
        if not place.exists():
            raise DataError(f"{place} does not exist; name folders or files that `dadlm evaluate` wrote")
        for file in sorted(place.rglob("*.json")) if place.is_dir() else [place]:
            if not file.name.startswith("."):  # being written
                files.setdefault(file.resolve(), file)
    return list(files.values())


def _render(template: str, sections: list[Section], found: list[Found], skipped: list[dict[str, str]]) -> str:
    """`page.html` or `report.md`; every text is escaped, figures are on the page only."""
    values = {"sections": sections, "found": found, "skipped": skipped, "short": in_short(sections)}
    return _environment().get_template(template).render(values).rstrip("\n") + "\n"


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent, encoding="utf-8"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        finalize=_checked,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"md": _escape, "code": _code}
    environment.tests["table"] = lambda part: isinstance(part, Table)
    return environment


def _checked(value: Any) -> Any:
    """A result that was edited may hold anything where a name is expected."""
    if not isinstance(value, str | int | Path):
        raise TypeError(f"{type(value).__name__} where a text is expected")
    return value


def _escape(text: str) -> str:
    return _MARKUP.sub(r"\\\1", html.escape(" ".join(text.split()), quote=False))


def _code(text: str) -> str:
    """Code whose fence is longer than any run of backticks in it."""
    text = " ".join(text.split())
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{text}{fence}" if len(fence) == 1 else f"{fence} {text} {fence}"

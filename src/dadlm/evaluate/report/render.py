"""Report → HTML and Markdown, by the Jinja templates beside this file; every text is escaped.

The page needs nothing outside itself: style and figures are inside. It has no script, and its content
security policy forbids any.
"""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dadlm.errors import ConfigError
from dadlm.evaluate.report.document import Found, Section, Table, in_short

if TYPE_CHECKING:
    from jinja2 import Environment

_MARKUP = re.compile(r"([\\`*_\[\]|#~$])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def render(
    template: str, sections: Sequence[Section], found: Sequence[Found], skipped: Sequence[dict[str, str]]
) -> str:
    """`page.html` or `report.md`; figures are on the page only."""
    values = {"sections": sections, "found": found, "skipped": skipped, "short": in_short(sections)}
    return _environment().get_template(template).render(values).rstrip("\n") + "\n"


@cache
def _environment() -> "Environment":
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
    except ImportError:
        raise ConfigError("the report needs jinja2: pip install 'dadlm[eval]'") from None
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
    text = re.sub("[&<>]", lambda sign: _ENTITIES[sign[0]], " ".join(text.split()))
    return _MARKUP.sub(r"\\\1", text)


def _code(text: str) -> str:
    """Code whose fence is longer than any run of backticks in it."""
    text = " ".join(text.split())
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{text}{fence}" if len(fence) == 1 else f"{fence} {text} {fence}"

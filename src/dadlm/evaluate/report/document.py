"""A report as plain data: sections of tables and figures, and how numbers are written. All text is plain."""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

NONE = "–"


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
class Cell:
    """A value, its interval in small print, and whether the interval shows it to be best."""

    text: str
    beside: str = ""
    best: bool = False


Content = Cell | str | None
"""What a cell may be given as; None: there is no value."""


@dataclass(frozen=True)
class Column:
    name: str
    group: str = ""
    """Neighbours of one group share a heading above their own."""
    paper: bool = False
    """The paper's numbers, set apart from ours."""
    words: bool = False
    """Text, not numbers."""
    detail: bool = False
    """Left out in a terminal, which is narrow."""


class Row:
    """Cells, the first of which names the row; `rule` starts a group of rows, `paper` are its numbers."""

    def __init__(self, cells: Iterable[Content], *, paper: bool = False, rule: bool = False) -> None:
        self.cells = [one if isinstance(one, Cell) else Cell(NONE if one is None else one) for one in cells]
        self.paper, self.rule = paper, rule


Difference = tuple[str, Any, Any]
"""A setting, ours and the paper's: numbers or words."""


class Table:
    """A table and its origin: the files, and the commands that made them where they say so."""

    def __init__(
        self,
        found: Iterable[Found],
        caption: str,
        columns: Iterable[Column | str],
        rows: Iterable[Row],
        *,
        differences: Iterable[Difference] | None = None,
        notes: Iterable[str] = (),
    ) -> None:
        """Differences None: the paper has no such table. Equal settings are left out, except for the data: no
        file name proves that it holds the paper's text, or which part of it."""
        found = list(found)
        self.caption, self.rows, self.notes = caption, list(rows), list(notes)
        self.columns = [Column(one) if isinstance(one, str) else one for one in columns]
        self.files = [str(one.file) for one in found]
        self.commands = list(
            dict.fromkeys(str(one.result["command"]) for one in found if one.result.get("command"))
        )
        self.differences = differences and [
            (what, _setting(ours), _setting(theirs))
            for what, ours, theirs in dict.fromkeys(differences)
            if ours != theirs or what == "data"
        ]

    @property
    def groups(self) -> list[tuple[str, list[Column]]]:
        """Neighbouring columns of one group together."""
        return [(group, list(columns)) for group, columns in groupby(self.columns, lambda one: one.group)]


@dataclass(frozen=True)
class Figure:
    svg: bytes
    caption: str

    @property
    def base64(self) -> str:
        return b64encode(self.svg).decode()


Parts = tuple[Sequence[Table | Figure], list[str]]
"""Tables and figures of a kind of evaluation, and its sentences for the summary."""


@dataclass(frozen=True, kw_only=True)
class Section:
    kind: str
    title: str
    about: str
    parts: Sequence[Table | Figure]
    short: list[str]


def ruled(rows: Iterable[tuple[Any, Iterable[Content]]]) -> list[Row]:
    """Rows from (group, cells); where the group changes there is a rule."""
    made, before = [], object()
    for group, cells in rows:
        made.append(Row(cells, rule=group != before))
        before = group
    return made


def number(value: float | None, digits: int = 2) -> str:
    """Fixed digits, thousands apart, a real minus; −0 is 0."""
    if value is None:
        return NONE
    text = f"{value:,.{digits}f}"
    return text.lstrip("-") if float(text.replace(",", "")) == 0 else text.replace("-", "−")


def whole(value: float | None) -> str:
    return number(value, 0)


def between(interval: Mapping[str, Any], digits: int = 2, scale: float = 1) -> str:
    return f"[{number(interval['low'] * scale, digits)}, {number(interval['high'] * scale, digits)}]"


def measured(
    interval: Mapping[str, Any] | None, digits: int = 2, *, scale: float = 1, best: bool = False
) -> Cell:
    """A mean with its interval beside it."""
    if interval is None:
        return Cell(NONE)
    return Cell(number(interval["mean"] * scale, digits), between(interval, digits, scale), best)


def in_words(interval: Mapping[str, Any], digits: int = 2) -> str:
    return f"{number(interval['mean'], digits)} {between(interval, digits)}"


def apart(one: Mapping[str, Any] | None, others: list[Mapping[str, Any] | None]) -> bool:
    """Whether an interval lies above all the others, so that its mean may be called the highest."""
    known = [other for other in others if other is not None]
    return one is not None and bool(known) and all(one["low"] > other["high"] for other in known)


def in_short(sections: Iterable[Section]) -> list[str]:
    """The sentences of all sections, each once."""
    return list(dict.fromkeys(line for section in sections for line in section.short))


def _setting(value: Any) -> str:
    return "unknown" if value is None else value if isinstance(value, str) else whole(value)

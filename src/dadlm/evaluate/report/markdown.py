"""A report as Markdown. Every text is escaped: a name with markup or HTML in it stays a name."""

import re
from collections.abc import Iterator, Sequence

from dadlm.evaluate.report.document import Cell, Column, Row, Section, Table, in_short
from dadlm.evaluate.report.gather import Found, Skipped

_MARKUP = re.compile(r"([\\`*_\[\]|#~$])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def to_markdown(sections: Sequence[Section], found: Sequence[Found], skipped: Sequence[Skipped]) -> str:
    """Tables in the page's order; figures are on the page only."""
    return "\n".join(_lines(sections, found, skipped)) + "\n"


def _lines(sections: Sequence[Section], found: Sequence[Found], skipped: Sequence[Skipped]) -> Iterator[str]:
    yield "# Evaluation report\n"
    yield "Intervals are 95%. Columns and rows marked “paper” repeat the paper's numbers."
    short = in_short(sections)
    if short:
        yield "\n## In short\n"
        yield from (f"- {_escape(line)}" for line in short)
    tables = 0
    for section in sections:
        yield f"\n## {_escape(section.title)}\n\n{_escape(section.about)}"
        for part in section.parts:
            if isinstance(part, Table):
                tables += 1
                yield from _table(part, tables)
    yield "\n## Files\n"
    yield from (f"- {_escape(one.kind)}: {_code(str(one.file))}" for one in found)
    yield from (f"- left out: {_code(str(one.file))}: {_escape(one.why)}" for one in skipped)


def _table(table: Table, number: int) -> Iterator[str]:
    yield f"\n**Table {number}.** {_escape(table.caption)}\n"
    yield _row(_heading(column) for column in table.columns)
    yield _row("---" if at == 0 or column.words else "---:" for at, column in enumerate(table.columns))
    yield from (_row(_cell(cell, row) for cell in row.cells) for row in table.rows)
    yield ""
    yield f"- {_differences(table)}"
    yield from (f"- {_escape(note)}" for note in table.notes)
    yield f"- From {', '.join(map(_code, table.files))}"
    yield from (f"- Made by {_code(command)}" for command in table.commands)


def _row(cells: Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _heading(column: Column) -> str:
    return _escape(f"{column.group}: {column.name}" if column.group else column.name)


def _cell(cell: Cell, row: Row) -> str:
    text = f"**{_escape(cell.text)}**" if cell.best else _escape(cell.text)
    text = f"*{text}*" if row.paper else text
    return f"{text} {_escape(cell.beside)}" if cell.beside else text


def _differences(table: Table) -> str:
    if table.differences is None:
        return "Not in the paper."
    if not table.differences:
        return "The paper's setting, as far as the result tells."
    told = (f"{one.what}: {one.ours} (paper: {one.paper})" for one in table.differences)
    return f"**Beside the paper:** {'; '.join(map(_escape, told))}."


def _escape(text: str) -> str:
    text = re.sub("[&<>]", lambda sign: _ENTITIES[sign[0]], " ".join(text.split()))
    return _MARKUP.sub(r"\\\1", text)


def _code(text: str) -> str:
    """Code whose fence is longer than any run of backticks in it."""
    text = " ".join(text.split())
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{text}{fence}" if len(fence) == 1 else f"{fence} {text} {fence}"

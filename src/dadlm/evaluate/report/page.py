"""A report as one HTML page that asks for nothing outside itself: style, figures and all.

There is no script on it, and its content security policy forbids any. Every text is escaped here.
"""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from dadlm.evaluate.report.document import Cell, Column, Figure, Row, Section, Table, in_short
from dadlm.evaluate.report.gather import Found, Skipped

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def to_html(sections: Sequence[Section], found: Sequence[Found], skipped: Sequence[Skipped]) -> str:
    return "\n".join(_lines(sections, found, skipped)) + "\n"


def _lines(sections: Sequence[Section], found: Sequence[Found], skipped: Sequence[Skipped]) -> Iterator[str]:
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<meta name="color-scheme" content="light dark">'
    yield '<link rel="icon" href="data:,">'  # or a browser asks its server for one
    yield f"<title>Evaluation report</title>\n<style>\n{style}</style>\n</head>\n<body>"
    yield "<header>\n<h1>Evaluation report</h1>"
    yield "<p>Directed Acyclic Diffusion Language Models: our measurements, the paper's numbers beside them. "
    yield 'Intervals are 95%. <span class="key">Tinted cells</span> repeat the paper.</p>'
    yield from _contents(sections)
    yield "</header>\n<main>"
    yield from _short(sections)
    counts = {Table: 0, Figure: 0}
    for section in sections:
        yield f'<section id="{escape(section.anchor)}">'
        yield f'<h2><a href="#{escape(section.anchor)}">{escape(section.title)}</a></h2>'
        yield f'<p class="about">{escape(section.about)}</p>'
        for part in section.parts:
            counts[type(part)] += 1
            number = counts[type(part)]
            yield from _table(part, number) if isinstance(part, Table) else _figure(part, number)
        yield "</section>"
    yield from _files(found, skipped)
    yield "</main>\n</body>\n</html>"


def _contents(sections: Sequence[Section]) -> Iterator[str]:
    anchors = [(section.anchor, section.title) for section in sections]
    yield '<nav aria-label="Contents">\n<ul>'
    for anchor, title in [*anchors, ("files", "Files")]:
        yield f'<li><a href="#{escape(anchor)}">{escape(title)}</a></li>'
    yield "</ul>\n</nav>"


def _short(sections: Sequence[Section]) -> Iterator[str]:
    lines = in_short(sections)
    if lines:
        yield '<section id="in-short" class="short">\n<h2><a href="#in-short">In short</a></h2>\n<ul>'
        yield from (f"<li>{escape(line)}</li>" for line in lines)
        yield "</ul>\n</section>"


def _table(table: Table, number: int) -> Iterator[str]:
    name = f"table-{number}"
    # The frame scrolls sideways on a narrow screen; with a tab stop the keyboard can scroll it too.
    yield f'<div class="frame" id="{name}" role="region" tabindex="0" aria-labelledby="{name}-caption">'
    yield f'<table>\n<caption><span id="{name}-caption"><a href="#{name}">Table {number}.</a> '
    yield f"{escape(table.caption)}</span></caption>"
    yield from _head(table.columns)
    yield from _body(table)
    yield "</table>\n</div>"
    yield '<ul class="notes">'
    yield f"<li>{_differences(table)}</li>"
    yield from (f"<li>{escape(note)}</li>" for note in table.notes)
    yield f'<li class="source">From {_listed(table.files)}</li>'
    yield from (f'<li class="source">Made by {_code(command)}</li>' for command in table.commands)
    yield "</ul>"


def _head(columns: Sequence[Column]) -> Iterator[str]:
    """One row of headings, or two where columns have a group: then those without one span both."""
    grouped = any(column.group for column in columns)
    yield "<thead>\n<tr>"
    for group, members in groupby(columns, lambda column: column.group):
        members = list(members)
        if group:
            shade = ' class="paper"' if all(column.paper for column in members) else ""
            yield f'<th scope="colgroup" colspan="{len(members)}"{shade}>{escape(group)}</th>'
        else:
            span = ' rowspan="2"' if grouped else ""
            yield from (
                f'<th scope="col"{span}{_class(column)}>{escape(column.name)}</th>' for column in members
            )
    yield "</tr>"
    if grouped:
        yield "<tr>"
        for column in columns:
            if column.group:
                yield f'<th scope="col"{_class(column)}>{escape(column.name)}</th>'
        yield "</tr>"
    yield "</thead>"


def _body(table: Table) -> Iterator[str]:
    yield "<tbody>"
    for at, row in enumerate(table.rows):
        if row.rule and at:
            yield "</tbody>\n<tbody>"
        shade = ' class="paper"' if row.paper else ""
        yield f"<tr{shade}>{''.join(_cells(row, table.columns))}</tr>"
    yield "</tbody>"


def _cells(row: Row, columns: Sequence[Column]) -> Iterator[str]:
    first, *others = row.cells
    yield f'<th scope="row">{_value(first)}</th>'
    for cell, column in zip(others, columns[1:], strict=True):
        yield f"<td{_class(column)}>{_value(cell)}</td>"


def _class(column: Column) -> str:
    names = " ".join(name for name in ("paper", "words") if getattr(column, name))
    return f' class="{names}"' if names else ""


def _value(cell: Cell) -> str:
    text = f"<strong>{escape(cell.text)}</strong>" if cell.best else escape(cell.text)
    return f"{text} <small>{escape(cell.beside)}</small>" if cell.beside else text


def _differences(table: Table) -> str:
    if table.differences is None:
        return '<b class="tag">Not in the paper</b>'
    if not table.differences:
        return "The paper's setting, as far as the result tells."
    told = "; ".join(
        f"{escape(one.what)} <b>{escape(one.ours)}</b> (paper: {escape(one.paper)})"
        for one in table.differences
    )
    return f'<b class="tag">Beside the paper</b> {told}.'


def _figure(figure: Figure, number: int) -> Iterator[str]:
    # As an image it keeps its names to itself and cannot run or ask for anything.
    data = b64encode(figure.svg).decode()
    name = f"figure-{number}"
    yield f'<figure id="{name}">\n<img alt="{escape(figure.caption)}" src="data:image/svg+xml;base64,{data}">'
    yield f'<figcaption><a href="#{name}">Figure {number}.</a> {escape(figure.caption)}</figcaption>'
    yield "</figure>"


def _files(found: Sequence[Found], skipped: Sequence[Skipped]) -> Iterator[str]:
    yield '<section id="files">\n<h2><a href="#files">Files</a></h2>\n<ul class="files">'
    yield from (f"<li>{escape(one.kind)}: {_code(str(one.file))}</li>" for one in found)
    yield "</ul>"
    if skipped:
        yield f'<details>\n<summary>Left out: {len(skipped)}</summary>\n<ul class="files">'
        yield from (f"<li>{_code(str(one.file))}: {escape(one.why)}</li>" for one in skipped)
        yield "</ul>\n</details>"
    yield "</section>"


def _listed(files: Sequence[str]) -> str:
    return ", ".join(map(_code, files))


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"

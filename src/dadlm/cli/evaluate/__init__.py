"""dadlm evaluate KIND: measure, write KIND.json, show the tables that `dadlm report` has for it."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dadlm.cli.evaluate.common import default_folder
from dadlm.cli.evaluate.kinds import OPTIONS
from dadlm.cli.options import parse, subcommand
from dadlm.errors import ConfigError
from dadlm.evaluate.report import document as doc
from dadlm.evaluate.report import sections_of
from dadlm.evaluate.work import write_result

USAGE = "\n".join(
    [
        "usage: dadlm evaluate KIND [options]\n",
        *(f"  {name:15s} {kind.__doc__}" for name, kind in OPTIONS.items()),
        "\ndadlm evaluate KIND --help lists the options. Each command writes KIND.json into --out;",
        "if interrupted, run it again to resume.",
    ]
)


def run(words: list[str]) -> int:
    problem = f"unknown kind of evaluation {words[0]!r}" if words else "say what to evaluate"
    options = subcommand(words, OPTIONS, USAGE, problem)
    if options is None:
        return 0
    kind, *words = words
    options = parse(options, words, f"evaluate {kind}")
    folder = Path(options.out) if options.out else default_folder(kind, options)
    if folder.is_file():
        raise ConfigError(f"{folder} is a file: --out must be a folder")
    command = shlex.join(["dadlm", "evaluate", kind, *_without_secrets(words)])
    result = options.measure(folder) | {"command": command}
    file = folder / f"{kind}.json"
    write_result(file, result)
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        show(result, file)
    return 0


def _without_secrets(words: list[str]) -> Iterator[str]:
    """The command without the value of --body, which may be secret; keys are never on the command line."""
    for before, word in zip(["", *words], words, strict=False):
        name = word.partition("=")[0]
        yield "..." if before == "--body" else f"{name}=..." if name == "--body" and name != word else word


def show(result: dict[str, Any], file: Path) -> None:
    """Print the result's tables without the paper's numbers. Names may look like markup, and are not."""
    console = Console(markup=False, emoji=False, highlight=False)
    [section] = sections_of([doc.Found(file, result)])
    tables = [part for part in section.parts if isinstance(part, doc.Table)]
    for table in tables:
        console.print(table.caption, soft_wrap=True)
        console.print(_table(table, console.width))
    notes = dict.fromkeys(note for table in tables for note in table.notes)
    for line in (*notes, *section.short, *filter(None, [result.get("note")])):
        console.print(line, soft_wrap=True)
    beside = sorted(one.name for one in file.parent.iterdir() if not one.name.endswith((".json", ".jsonl")))
    more = f" (beside it: {', '.join(beside)})" if beside else ""
    console.print(f"{file}{more}", soft_wrap=True)
    console.print("Run again, it reuses what is there: remove the folder to measure anew.", style="dim")


def _table(table: doc.Table, width: int) -> Table:
    """As it is, or, where it is too wide for the terminal and fits so, turned: a column for each row."""
    shown = [at for at, one in enumerate(table.columns) if not (one.paper or one.detail)]
    rows = [row for row in table.rows if not row.paper]
    heads = [_name(table.columns[at]) for at in shown]
    cells = [[_cell(row.cells[at]) for at in shown] for row in rows]
    words = [not at or column.words for at, column in enumerate(table.columns)]
    if _width([heads, *cells]) > width:
        turned = [list(line) for line in zip(heads, *cells, strict=True)]
        if _width(turned) <= width:
            heads, cells, rows = turned[0], turned[1:], []
            words = [True] + [False] * len(heads)
            shown = list(range(len(heads)))
    out = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))  # 80 columns are enough for most
    for at, head in zip(shown, heads, strict=True):  # a number is never cut off
        out.add_column(head, justify="left" if words[at] else "right", overflow="fold")
    for at, line in enumerate(cells):
        if rows and rows[at].rule:
            out.add_section()
        out.add_row(*line)
    return out


def _name(column: doc.Column) -> Text:
    return Text(f"{column.group}: {column.name}" if column.group not in ("", "Ours") else column.name)


def _cell(one: doc.Cell) -> Text:
    return Text(f"{one.text} {one.beside}".rstrip(), "bold" * one.best)


def _width(lines: list[list[Text]]) -> int:
    """Columns that a table of these lines takes, nothing folded."""
    return 1 + sum(1 + max(cell.cell_len for cell in column) for column in zip(*lines, strict=True))

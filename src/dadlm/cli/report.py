"""dadlm report: results of evaluations → one page, the paper's numbers beside ours."""

import json
from dataclasses import dataclass, field

import tyro
from rich.console import Console

from dadlm.cli.options import JsonOption, parse
from dadlm.errors import ConfigError
from dadlm.evaluate import report


@dataclass(frozen=True, kw_only=True)
class _Options(JsonOption):
    folders: tyro.conf.Positional[list[str]] = field(default_factory=list)
    """Folders (searched recursively) or JSON files written by `dadlm evaluate`."""
    out: str = "report"
    """Folder for index.html and report.md."""


def run(words: list[str]) -> int:
    options = parse(_Options, words, "report")
    if not options.folders:
        raise ConfigError("no results: name folders, for example `dadlm report evaluation`")
    result = report(options.folders, options.out)
    if options.json:
        print(json.dumps(result))
        return 0
    console = Console(markup=False, emoji=False, highlight=False, soft_wrap=True)
    for one in result["results"]:
        console.print(f"{one['kind']:15s} {one['file']}")
    for one in result["skipped"]:
        console.print(f"{'left out':15s} {one['file']}: {one['why']}", style="dim")
    for line in result["in_short"]:
        console.print(f"• {line}")
    console.print(f"{result['page']}\n{result['markdown']}")
    return 0

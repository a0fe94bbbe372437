"""What the kinds of evaluation share on the command line: their first options, and how results are shown."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import tyro
from rich.console import Console
from rich.table import Table

from dadlm.errors import ConfigError
from dadlm.model import Model, load

Options = TypeVar("Options")


@dataclass(frozen=True, kw_only=True)
class Common:
    """Options of every kind; a kind adds its own."""

    out: str = ""
    """Folder for the result and the finished pieces; empty: evaluation/KIND."""
    seed: int = 0
    """Decides everything that is random."""
    batch_size: int = 16
    """Rows side by side; changes speed, not results."""
    device: str = "auto"
    """cpu, cuda, or auto: cuda where there is one."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def folder(self, kind: str) -> Path:
        return Path(self.out or f"evaluation/{kind}")


def parse(options: type[Options], words: list[str], kind: str) -> Options:
    prog = f"dadlm evaluate {kind}"
    return tyro.cli(options, args=words, prog=prog, config=(tyro.conf.FlagCreatePairsOff,))


def load_model(name: str, device: str, option: str = "--model") -> Model:
    if not name:
        raise ConfigError(f"no model: pass {option} FOLDER, for example one that `dadlm train` made")
    return load(name, ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)


def show(result: dict[str, Any], table: Table, notes: list[str], folder: Path, as_json: bool) -> int:
    """Print a result: as one JSON object, or as a table with the notes that belong to it."""
    if as_json:
        print(json.dumps(result, ensure_ascii=False))
        return 0
    console = Console()
    console.print(table)
    for note in notes:
        console.print(note, highlight=False, soft_wrap=True)
    console.print(f"[dim]{folder / result['kind']}.json[/dim]", highlight=False, soft_wrap=True)
    return 0

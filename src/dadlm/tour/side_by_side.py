"""The models that ship with the package complete one prompt, side by side: AR, BD3LM, DA-DLM."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from dadlm.decode.picture import new_figure
from dadlm.errors import ConfigError
from dadlm.model import load
from dadlm.model.files import write_json
from dadlm.threads import one_thread
from dadlm.tour.comparison import compare, draw, show_text
from dadlm.tour.completions import TEXTS, completions

SYSTEMS = {"AR": "ar", "BD3LM": "bd3lm", "DA-DLM": "dadlm"}
LEFT = ("prompt.json", "dag.svg", "dag.png")
"""Files that it leaves."""


def complete_side_by_side(out: Path, prompt: str, seed: int = 0, quiet: bool = False) -> dict[str, Any]:
    """Complete, measure, draw; returns (and writes to prompt.json) every number that is shown."""
    new_figure(1, 1)  # a missing extra is told at once
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; choose another --out")
    with one_thread():
        return _complete(out, prompt, seed, Console(quiet=quiet, highlight=False))


def _complete(out: Path, prompt: str, seed: int, console: Console) -> dict[str, Any]:
    models = {system: load(name) for system, name in SYSTEMS.items()}
    rows = []
    for row in completions(models, prompt, seed, judge=models["AR"]):
        show_text(prompt, row, console)
        rows.append(row)
    compare(rows, console)
    out.mkdir(parents=True, exist_ok=True)
    draw(models["DA-DLM"], prompt, seed, out)
    result = {"prompt": prompt, "seed": seed, "texts": TEXTS, "rows": [asdict(row) for row in rows]}
    write_json(out / LEFT[0], result)
    told = f"\npicture: {out}/dag.svg (one step of DA-DLM, its graph); also as .png"
    console.print(told, markup=False)
    return result

"""dadlm evaluate reconstruction: the paper's conditional block reconstruction, alone or in pairs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from dadlm.cli.evaluate.common import OnText, load_model, names_of
from dadlm.evaluate import Interval, reconstruction
from dadlm.evaluate.intervals import caution
from dadlm.evaluate.reconstruction import check_tokenizers
from dadlm.evaluate.text import in_words
from dadlm.model.pretrained import DEFAULT


@dataclass(frozen=True, kw_only=True)
class Options(OnText):
    model: str = DEFAULT
    """One that ships with dadlm (dadlm, bd3lm, ar), a folder of a model or of a training run (its best
    checkpoint), or a Hugging Face name."""
    against: str = ""
    """A second model, to be compared row by row; empty: none."""
    count: int | None = None
    """Rows to score, from the start of the text; None: all."""
    length: int | None = None
    """Tokens of a row; None: the context, of two models the shorter one."""


def measure(options: Options, folder: Path) -> dict[str, Any]:
    model = load_model(options.model, options)
    against = load_model(options.against, options) if options.against else None
    length = options.length
    if against is not None:
        check_tokenizers([model, against])  # before any text is tokenised
    if length is None and against is not None:
        length = min(model.config.context, against.config.context)
    rows, data = options.rows(model, length)
    names = names_of([options.model, options.against or options.model])
    return reconstruction(
        model,
        rows,
        against=against,
        count=options.count,
        seed=options.seed,
        batch_size=options.batch_size,
        out=folder,
        quiet=options.json,
        data=data,
        names=(names[0], names[1]),
    )


def table(result: dict[str, Any]) -> Table:
    table = Table("model", "family", "reconstruction, nats/token", "bound", "gap")
    for side, prefix in (("model", ""), ("against", "against_")):
        if (facts := result[side]) is not None:
            interval = Interval(**result[f"{prefix}interval"])
            bound, gap = result[f"{prefix}bound"], result[f"{prefix}gap"]
            table.add_row(facts["name"], facts["family"], str(interval), f"{bound:.4f}", f"{gap:.4f}")
    return table


def notes(result: dict[str, Any]) -> list[str]:
    notes = [
        f"{in_words(result)}: {result['note']}",
        *caution(result["groups"], "documents (or runs of rows of a single one)"),
    ]
    if result["difference"] is not None:
        difference = Interval(**result["difference"])
        notes.append(f"difference, row by row: {difference} (negative: the first model is better)")
        if not result["same_masks"]:
            notes.append(
                "the block sizes differ, so each model has its own masks: only the rows are the same"
            )
    return notes

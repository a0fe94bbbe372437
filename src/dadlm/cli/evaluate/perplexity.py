"""dadlm evaluate perplexity: exact for AR, a valid bound for the other families."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from dadlm.cli.evaluate.common import OnText, load_model, names_of
from dadlm.evaluate import perplexity
from dadlm.evaluate.intervals import caution
from dadlm.evaluate.text import in_words
from dadlm.model.pretrained import DEFAULT


@dataclass(frozen=True, kw_only=True)
class Options(OnText):
    model: str = DEFAULT
    """One that ships with dadlm (dadlm, bd3lm, ar), a folder of a model or of a training run (its best
    checkpoint), or a Hugging Face name."""
    count: int | None = None
    """Rows to score, drawn from all over the text; None: all."""
    length: int | None = None
    """Tokens of a row; None: the model's context."""
    draws: int = 1
    """Masks drawn for each row and form: more narrow the interval (AR draws none)."""


def measure(options: Options, folder: Path) -> dict[str, Any]:
    model = load_model(options.model, options)
    rows, data = options.rows(model, options.length)
    return perplexity(
        model,
        rows,
        count=options.count,
        draws=options.draws,
        seed=options.seed,
        batch_size=options.batch_size,
        out=folder,
        quiet=options.json,
        data=data,
        name=names_of([options.model])[0],
    )


def table(result: dict[str, Any]) -> Table:
    sign = "≤ " if result["is_bound"] else ""
    table = Table(result["model"]["family"], result["model"]["name"])
    table.add_row("perplexity", _shown(result["perplexity"], 2, sign))
    table.add_row("nats per token", _shown(result["nll"], 4, sign))
    table.add_row("the same, t-sampled", _shown(result["nll_by_time"], 4, sign))
    table.add_row("bits per byte", _shown(result["bits_per_byte"], 4, sign))
    return table


def _shown(interval: dict[str, float] | None, digits: int, sign: str) -> str:
    if interval is None:
        return "–"
    mean, low, high = (f"{interval[side]:.{digits}f}" for side in ("mean", "low", "high"))
    return f"{sign}{mean} [{low}, {high}]"


def notes(result: dict[str, Any]) -> list[str]:
    notes = [
        in_words(result),
        *caution(result["groups"], "documents (or runs of rows of a single one)"),
        f"this is {result['note']}",
    ]
    if result["forms_agree"] is not None:
        notes.append(
            f"both forms {'agree' if result['forms_agree'] else 'DO NOT agree (by chance 1 time in 20)'}"
        )
    return notes

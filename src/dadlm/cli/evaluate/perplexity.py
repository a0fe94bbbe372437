"""dadlm evaluate perplexity: exact for AR, a valid bound for the other families."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dadlm.cli.evaluate.common import OneModel, OnText, load_model, names_of
from dadlm.evaluate import perplexity


@dataclass(frozen=True, kw_only=True)
class Options(OnText, OneModel):
    count: int | None = None
    """Rows to score, drawn from all over the text; None: all."""
    length: int | None = None
    """Tokens of a row; None: the model's context."""
    draws: int = 1
    """Masks drawn for each row and form: more narrow the interval (AR draws none)."""


def measure(options: Options, folder: Path) -> dict[str, Any]:
    model = load_model(options.model, options)
    rows, data = options.rows(model, options.length)
    [name] = names_of([options.model])
    run = options.run(folder)
    return perplexity(model, rows, count=options.count, draws=options.draws, data=data, name=name, **run)

"""dadlm evaluate reconstruction: the paper's conditional block reconstruction, alone or in pairs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dadlm.cli.evaluate.common import OneModel, OnText, load_model, names_of
from dadlm.evaluate import reconstruction
from dadlm.evaluate.reconstruction import check_tokenizers


@dataclass(frozen=True, kw_only=True)
class Options(OnText, OneModel):
    against: str = ""
    """A second model, to be compared row by row; empty: none."""
    count: int | None = None
    """Rows to score, from the start of the text; None: all."""
    length: int | None = None
    """Tokens of a row; None: the context, of two models the shorter one."""


def measure(options: Options, folder: Path) -> dict[str, Any]:
    model = load_model(options.model, options)
    against, length = None, options.length
    if options.against:
        against = load_model(options.against, options)
        check_tokenizers([model, against])  # before any text is tokenised
        length = length or min(model.config.context, against.config.context)
    rows, data = options.rows(model, length)
    first, second = names_of([options.model, options.against or options.model])
    run = options.run(folder) | {"data": data, "names": (first, second)}
    return reconstruction(model, rows, against=against, count=options.count, **run)

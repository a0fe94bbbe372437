"""dadlm evaluate generation: completions over a grid of decoding settings, their quality and their cost."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from dadlm.cli.evaluate.common import OnText, load_models
from dadlm.evaluate import generation


@dataclass(frozen=True, kw_only=True)
class Options(OnText):
    model: tuple[str, ...] = ("bd3lm", "dadlm")
    """Models to compare, by name or folder; a BD3LM of the same block size makes an adjusted TPF possible."""
    configurations: tuple[str, ...] = ("quick",)
    """Presets (quick, paper, paper-16, paper-8, paper-4) or single ones: FH T=8 T=8/infill=2,0.5 conf=0.9."""
    samples: int = 200
    """Texts for each model and configuration; the paper has 5,000."""
    prompt_tokens: int | None = None
    """Tokens of a row that are given; None: 64, or half a context below 128."""
    new_tokens: int | None = None
    """Tokens to write; None: to the end of the context."""
    embedder: str = "smollm2"
    """Features for MAUVE: smollm2, minilm, gpt2-large, a Hugging Face name or folder; none: no MAUVE."""
    judge_lm: str = "smollm2"
    """Language model for perplexity: smollm2, a Hugging Face name or folder; none: no perplexity."""


def measure(options: Options, folder: Path) -> dict[str, Any]:
    models = load_models(options.model, options)
    shortest = min(models.values(), key=lambda model: model.config.context)
    rows, data = options.rows(shortest)
    return generation(
        models,
        rows,
        configurations=options.configurations,
        samples=options.samples,
        prompt_tokens=options.prompt_tokens,
        new_tokens=options.new_tokens,
        embedder=_or_none(options.embedder),
        judge_lm=_or_none(options.judge_lm),
        seed=options.seed,
        batch_size=options.batch_size,
        out=folder,
        quiet=options.json,
        data=data,
    )


def _or_none(name: str) -> str | None:
    return None if name in ("", "none") else name


def table(result: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))  # 80 columns are enough
    for name in ("model", "N", "decoding", "MAUVE", "judge PPL", "TPF", "adj.\nTPF"):
        table.add_column(name, overflow="fold")  # a number is never cut
    for row in result["rows"]:
        table.add_row(
            row["model"],
            "–" if row["block_size"] is None else str(row["block_size"]),
            row["configuration"],
            _interval(row["mauve"], 3),
            _interval(row["judge_perplexity"], 0),
            f"{row['raw_tpf']:.2f}",
            "–" if row["adjusted_tpf"] is None else f"{row['adjusted_tpf']:.2f}",
        )
    table.add_row("(real)", "", "", "", _interval(result["reference"]["judge_perplexity"], 0), "", "")
    return table


def notes(result: dict[str, Any]) -> list[str]:
    drawn = any(row["mauve"] or row["judge_perplexity"] for row in result["rows"])
    return [*result["notes"], f"beside the result: samples/{', pareto.svg, pareto.png' if drawn else ''}"]


def _interval(value: dict[str, float] | None, digits: int) -> str:
    if value is None:
        return "–"
    return f"{value['mean']:.{digits}f} ({value['low']:.{digits}f}–{value['high']:.{digits}f})"

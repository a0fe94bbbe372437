"""dadlm evaluate summarisation: ROUGE, tokens per forward pass and the lead-sentence baseline."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from dadlm.cli.evaluate.common import Common, load_model, names_of
from dadlm.errors import ConfigError
from dadlm.evaluate import summarisation
from dadlm.evaluate.documents import read_documents
from dadlm.evaluate.intervals import caution
from dadlm.evaluate.summarisation import summary_settings
from dadlm.model.pretrained import DEFAULT
from dadlm.train.finetune import learned_lengths, lengths_as_learned

_SCORES = {"rouge1": "R-1", "rouge2": "R-2", "rougeL": "R-L", "average": "average"}
_SHOWN = 5  # lines left out that are named; the result names all


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    model: str = DEFAULT
    """One that ships with dadlm (dadlm, bd3lm, ar), a folder of a model or of a training run (its best
    checkpoint), or a Hugging Face name."""
    data: str = ""
    """JSON Lines (.jsonl, also .zst) of {"document", "summary"} or {"prompt", "completion"}, or a folder of
    them."""
    pairs: int | None = None
    """Use the first so many pairs; none: all."""
    document_tokens: int | None = None
    """Tokens of a document that are read, the end-of-text after it included; none: as many as in fine-tuning,
    or 3/4 of the context."""
    summary_tokens: int | None = None
    """Tokens of the summary at most; none: as many as in fine-tuning, or the rest of the context."""
    strict: bool = False
    """Stop at the first line that is no pair, instead of leaving it out."""
    paper: bool = False
    """Decode as the paper does: DA-DLM along the best path of a block, end-of-text like any other token. Such
    summaries are short."""
    threshold: float = 0.9
    """Confidence from which on diffusion models keep a token; AR decodes greedily."""
    infill: tuple[int, float] | None = None
    """k r: fill gaps of at most k tokens once a share r of the block is known."""


def measure(options: Options, folder: Path) -> dict[str, Any]:
    if not options.data:
        raise ConfigError('no data: pass --data FILE, JSON Lines of {"document": ..., "summary": ...}')
    if options.pairs is not None and options.pairs < 1:
        raise ConfigError(f"--pairs must be at least 1, got {options.pairs}")
    model = load_model(options.model, options)
    learned = learned_lengths(options.model)
    sizes = lengths_as_learned(model, learned, options.document_tokens, options.summary_tokens)
    return summarisation(
        model,
        read_documents(options.data, count=options.pairs, strict=options.strict),
        settings=summary_settings(
            model.config.family, paper=options.paper, threshold=options.threshold, infill=options.infill
        ),
        document_tokens=sizes[0],
        summary_tokens=sizes[1],
        seed=options.seed,
        batch_size=options.batch_size,
        name=names_of([options.model])[0],
        out=folder,
        quiet=options.json,
    )


def table(result: dict[str, Any]) -> Table:
    table = Table(title=f"ROUGE F1 ×100 with 95% intervals, {result['data']['pairs']} pairs")
    table.add_column("")
    table.add_column(result["model"]["name"], justify="right")
    table.add_column("first sentence", justify="right")
    for name, label in _SCORES.items():
        cells = (
            "{mean:.2f} [{low:.2f}, {high:.2f}]".format(**side[name]) for side in (result, result["lead"])
        )
        table.add_row(label, *cells)
    table.add_row("TPF", f"{result['tpf']:.2f}")
    if result["timed"]:
        told = f"{result['ms_per_summary']:.1f}"
        table.add_row(f"ms per summary, {result['timed']} in batches of {result['batch_size']}", told)
    return table


def notes(result: dict[str, Any]) -> list[str]:
    pairs, lines = result["data"]["pairs"], result["skipped_lines"]
    notes = [
        f"{result['truncated']} of {pairs} documents cut to {result['document_tokens']} tokens; "
        f"{result['references_too_long']} references are longer than the {result['summary_tokens']} "
        "tokens a summary may have (they are scored whole).",
        *caution(pairs, "pairs"),
    ]
    if result["empty"]:
        notes.append(f"{result['empty']} summaries are empty and score 0.")
    if lines:
        more = f" and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
        notes.append(f"{len(lines)} lines left out: {'; '.join(lines[:_SHOWN])}{more}")
    return notes

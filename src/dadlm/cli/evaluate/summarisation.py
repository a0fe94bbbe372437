"""dadlm evaluate summarisation: ROUGE, tokens per forward pass and the lead-sentence baseline."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dadlm.cli.evaluate.common import OneModel, load_model, names_of
from dadlm.errors import ConfigError
from dadlm.evaluate import summarisation
from dadlm.evaluate.documents import read_documents
from dadlm.evaluate.summarisation import summary_settings
from dadlm.train.finetune import learned_lengths, lengths_as_learned


@dataclass(frozen=True, kw_only=True)
class Options(OneModel):
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
    how = {"paper": options.paper, "threshold": options.threshold, "infill": options.infill}
    return summarisation(
        model,
        read_documents(options.data, count=options.pairs, strict=options.strict),
        settings=summary_settings(model.config.family, **how),
        document_tokens=sizes[0],
        summary_tokens=sizes[1],
        name=names_of([options.model])[0],
        **options.run(folder),
    )

"""Fine-tuning from files of pairs: read, told what does not fit, trained (`finetuner.py`)."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dadlm.errors import ConfigError
from dadlm.evaluate.documents import read_documents
from dadlm.evaluate.summarisation import lengths, rouge_scorer
from dadlm.model import Model, load
from dadlm.model.checkpoint import locate, set_weights, weights
from dadlm.train.alone import alone_in
from dadlm.train.finetune_config import FinetuneConfig
from dadlm.train.finetuner import Finetuner
from dadlm.train.pair_rows import Encoded, encode_pairs
from dadlm.train.progress import read_progress
from dadlm.train.ranks import Ranks

_SHOWN = 5  # lines left out that are named; the result names all


@dataclass(frozen=True, kw_only=True)
class Finetuned:
    """How a fine-tuning ended."""

    folder: str
    step: int
    rouge: float | None
    """Average ROUGE of the best checkpoint on the validation pairs that were summarised."""
    best_step: int | None
    """The step of that checkpoint."""
    interrupted: bool
    pairs: int
    cut_documents: int
    """Documents to learn from that were longer than is read."""
    cut_summaries: int
    skipped_lines: tuple[str, ...]
    """Lines left out of both files, each with what was wrong."""


def finetune(config: FinetuneConfig, *, quiet: bool = False) -> Finetuned:
    """Fine-tune a model on pairs, or go on with it if its folder holds an unfinished run."""
    for name in ("model", "data", "valid"):
        if not getattr(config, name):
            example = "--model bd3lm --data train.jsonl --valid val.jsonl"
            raise ConfigError(f"--{name} is missing, for example: dadlm finetune {example}")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("fine-tuning runs in one process: start it without torchrun")
    rouge_scorer()  # a package that is missing must be told now, not at the first validation
    data, valid = (read_documents(files, strict=config.strict) for files in (config.data, config.valid))
    model = load(config.model)
    if config.dropout is not None:
        model = _with_dropout(model, config.dropout, config.model)
    if not model.config.denoises_blocks:  # the recipe is for all families
        config = replace(config, train=replace(config.train, masks=1))
    sizes = lengths_as_learned(
        model, learned_lengths(config.model), config.document_tokens, config.summary_tokens
    )
    config = replace(config, document_tokens=sizes[0], summary_tokens=sizes[1])
    encoded = encode_pairs(model, data, *sizes)
    skipped = data.skipped + valid.skipped
    with alone_in(Path(config.out), Ranks()):
        tuner = Finetuner(config, model, encoded, valid, quiet=quiet)
        if not quiet:
            print("\n".join(_told(encoded, skipped, *sizes)))
        step, interrupted = tuner.run()
    best = tuner.state.best
    return Finetuned(
        folder=config.out,
        step=step,
        rouge=None if best == float("inf") else -best,
        best_step=tuner.best_step,
        interrupted=interrupted,
        pairs=len(encoded.rows),
        cut_documents=encoded.cut_documents,
        cut_summaries=encoded.cut_summaries,
        skipped_lines=skipped,
    )


def _with_dropout(model: Model, dropout: float, origin: str) -> Model:
    """The same weights in layers that leave out another share."""
    changed = Model(replace(model.config, dropout=dropout), model.tokenizer)
    set_weights(changed, weights(model), origin)
    return changed


def learned_lengths(model: str) -> tuple[int, int] | None:
    """Tokens of documents and summaries that a model was fine-tuned on; None: it never was."""
    folder = locate(model)
    if not (folder / "training" / "state.json").is_file():
        return None
    progress = read_progress(folder)
    if "document_tokens" not in progress or "summary_tokens" not in progress:
        return None
    return int(progress["document_tokens"]), int(progress["summary_tokens"])


def lengths_as_learned(
    model: Model, learned: tuple[int, int] | None, document: int | None, summary: int | None
) -> tuple[int, int]:
    """Tokens to read and to write: what was asked for, or what the model has learned from."""
    if learned is not None:  # what is not asked for, as far as it fits beside what is
        context = model.config.context
        if document is None:
            document = min(learned[0], context - (summary or learned[1]))
        if summary is None:
            summary = min(learned[1], context - document)
    return lengths(model, document, summary)


def _told(
    encoded: Encoded, skipped: tuple[str, ...], document_tokens: int, summary_tokens: int
) -> Iterator[str]:
    yield f"{len(encoded.rows)} pairs to learn"
    if encoded.cut_documents:
        yield f"{encoded.cut_documents} documents are cut to {document_tokens} tokens"
    if encoded.cut_summaries:
        yield f"{encoded.cut_summaries} summaries are cut to {summary_tokens} tokens"
    if skipped:
        yield f"{len(skipped)} lines are left out (--strict stops instead):"
        yield from (f"  {line}" for line in skipped[:_SHOWN])
        if len(skipped) > _SHOWN:
            yield f"  and {len(skipped) - _SHOWN} more"

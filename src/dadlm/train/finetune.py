"""Fine-tuning on pairs of texts: the second is learned; ROUGE decides which model is best and when to end."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dadlm.decode import release_engine
from dadlm.errors import ConfigError
from dadlm.evaluate.documents import Documents, read_documents
from dadlm.evaluate.summarisation import lengths, rouge_scorer, summarisation
from dadlm.model import Model, eval_mode, load
from dadlm.model.checkpoint import locate, set_weights, weights
from dadlm.objective import losses
from dadlm.train.batches import Batches, noise_of
from dadlm.train.checkpoint import LENGTHS, read_progress
from dadlm.train.config import DataConfig, FinetuneConfig, RunConfig
from dadlm.train.log import Log
from dadlm.train.loop import Loop
from dadlm.train.pair_rows import Encoded, PairRows, encode_pairs
from dadlm.train.processes import ALONE, alone_in

_SHOWN = 5  # skipped lines that are printed; the result names all of them


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
    """Lines that were skipped in both files, each with what was wrong."""


class Finetuner(Loop):
    """One fine-tuning of given pairs; `finetune` reads them from files."""

    advice = "Start another run with a lower --train.lr"

    def __init__(
        self, config: FinetuneConfig, model: Model, encoded: Encoded, valid: Documents, *, quiet: bool = False
    ) -> None:
        train, self.name, self.patience = config.train, f"fine-tuning {model.config.family}", config.patience
        sizes = lengths(model, config.document_tokens, config.summary_tokens)
        self.lengths = dict(zip(LENGTHS, sizes, strict=True))
        rows = PairRows(encoded.rows, model.config, train.batch_size)
        valid_rows = encode_pairs(model, valid, **self.lengths).rows[: train.valid_rows]
        self.valid_rows = PairRows(valid_rows, model.config, train.batch_size)
        self.shown = _evenly(valid, config.rouge_pairs)
        # The saved run says where the weights come from; the data are identified by their fingerprints.
        data = DataConfig(train=" ".join(config.data), valid=" ".join(config.valid))
        run = RunConfig(model=model.config, data=data, noise=config.noise, train=train)
        run = replace(run, out=config.out, init_from=config.model)
        metadata = {**self.lengths, "rouge_pairs": config.rouge_pairs}
        prints = [rows.fingerprint(), self.shown.fingerprint]
        super().__init__(run, model, Batches(run, rows), data=prints, metadata=metadata, quiet=quiet)

    def validate(self, log: Log) -> float:
        """By ROUGE on some pairs; the loss on more of them is logged too."""
        state, batch_size = self.state, self.config.train.batch_size
        with state.ema.in_place_of(self.weights):
            loss = self._valid_loss()
            written = summarisation(state.model, self.shown, **self.lengths, batch_size=batch_size)
        release_engine(state.model)  # decoding holds no memory while training goes on
        rouge = written["average"]["mean"]
        log.validation(state.step, {"valid_loss": loss, "valid_rouge": rouge, "valid_tpf": written["tpf"]})
        return -rouge

    def _valid_loss(self) -> float:
        """In nats per learned token, under the same noise every time."""
        model, total, tokens = self.state.model, 0.0, 0
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)
        with eval_mode(model), torch.no_grad(), autocast:
            for index, batch in enumerate(self.valid_rows.in_order()):
                how = {"seed": 0, "step": index, "rows": torch.arange(len(batch.ids))}
                how |= {"batch_rows": len(batch.ids), "most_blocks": batch.most_blocks}
                noise = noise_of(model.config, self.config.noise, batch.ids, batch.loss_mask, **how)
                noise = None if noise is None else noise.to(self.device)
                ids, loss_mask = batch.ids.to(self.device), batch.loss_mask.to(self.device)
                total += float(losses(model, ids, noise, report=False, loss_mask=loss_mask).train.sum())
                tokens += int(batch.loss_mask.sum())
        return total / tokens

    def is_done(self) -> bool:
        """The last step, or `patience` validations since the best."""
        step, every, best = self.state.step, self.config.train.valid_every, self.best_step
        tired = self.patience and best is not None and step // every - best // every >= self.patience
        return super().is_done() or bool(tired)

    @property
    def best_step(self) -> int | None:
        """Of the checkpoint with the best ROUGE so far, to which a link points."""
        best = self.out / "best"
        return read_progress(best)["step"] if best.exists() else None


def _evenly(documents: Documents, count: int) -> Documents:
    """That many pairs, spread evenly over all: files of different kinds follow one another."""
    total = len(documents.pairs)
    count = min(count, total)
    pairs = tuple(documents.pairs[place * total // count] for place in range(count))
    return Documents(pairs=pairs, source=documents.source)


def finetune(config: FinetuneConfig, *, quiet: bool = False) -> Finetuned:
    """Fine-tune a model on pairs, or resume it if its folder holds an unfinished run."""
    for name in ("model", "data", "valid"):
        if not getattr(config, name):
            example = "--model bd3lm --data train.jsonl --valid val.jsonl"
            raise ConfigError(f"--{name} is missing, for example: dadlm finetune {example}")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("fine-tuning runs in one process: start it without torchrun")
    rouge_scorer()  # report a missing package now, not at the first validation
    data, valid = (read_documents(files, strict=config.strict) for files in (config.data, config.valid))
    model = load(config.model)
    if config.dropout is not None:  # the same weights with another dropout
        changed = Model(replace(model.config, dropout=config.dropout), model.tokenizer)
        set_weights(changed, weights(model), config.model)
        model = changed
    if not model.config.denoises_blocks:  # the recipe is for all families
        config = replace(config, train=replace(config.train, masks_per_row=1))
    learned = learned_lengths(config.model)
    sizes = lengths_as_learned(model, learned, config.document_tokens, config.summary_tokens)
    config = replace(config, document_tokens=sizes[0], summary_tokens=sizes[1])
    encoded = encode_pairs(model, data, *sizes)
    skipped = data.skipped + valid.skipped
    with alone_in(Path(config.out), ALONE):
        tuner = Finetuner(config, model, encoded, valid, quiet=quiet)
        if not quiet:
            print("\n".join(_summary(encoded, skipped, sizes)))
        done = tuner.run()
    return Finetuned(
        folder=config.out,
        step=done.step,
        rouge=None if done.valid == float("inf") else -done.valid,
        best_step=tuner.best_step,
        interrupted=done.interrupted,
        pairs=len(encoded.rows),
        cut_documents=encoded.cut_documents,
        cut_summaries=encoded.cut_summaries,
        skipped_lines=skipped,
    )


def learned_lengths(model: str) -> tuple[int, int] | None:
    """Tokens of documents and summaries that a model was fine-tuned on; None if it never was."""
    folder = locate(model)
    if not (folder / "training" / "state.json").is_file():
        return None
    document, summary = (read_progress(folder).get(name) for name in LENGTHS)
    return None if document is None or summary is None else (document, summary)


def lengths_as_learned(
    model: Model, learned: tuple[int, int] | None, document: int | None, summary: int | None
) -> tuple[int, int]:
    """Tokens to read and to write: as asked for, or as the model has learned."""
    if learned is not None:  # what was not asked for, as far as the rest of the context allows
        context = model.config.context
        if document is None:
            document = min(learned[0], context - (summary or learned[1]))
        if summary is None:
            summary = min(learned[1], context - document)
    return lengths(model, document, summary)


def _summary(encoded: Encoded, skipped: tuple[str, ...], sizes: tuple[int, int]) -> Iterator[str]:
    yield f"{len(encoded.rows)} pairs to learn"
    cut = {"documents": encoded.cut_documents, "summaries": encoded.cut_summaries}
    for (what, count), most in zip(cut.items(), sizes, strict=True):
        if count:
            yield f"{count} {what} are cut to {most} tokens"
    if skipped:
        yield f"{len(skipped)} lines are left out (--strict stops instead):"
        yield from (f"  {line}" for line in skipped[:_SHOWN])
        if len(skipped) > _SHOWN:
            yield f"  and {len(skipped) - _SHOWN} more"

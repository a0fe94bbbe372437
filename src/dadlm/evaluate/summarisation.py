"""How well a model summarises: ROUGE with intervals, tokens per forward pass, the lead-sentence baseline.

Works with any model that has a tokenizer. References are scored whole, so that models of different contexts
are measured by the same texts.
"""

import re
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from dadlm.decode import DecodeSettings, generate
from dadlm.errors import ConfigError
from dadlm.evaluate.documents import Documents
from dadlm.evaluate.intervals import bootstrap
from dadlm.evaluate.subject import describe, described
from dadlm.evaluate.work import Work
from dadlm.model import Model


def summarisation(
    model: Model,
    documents: Documents,
    *,
    settings: DecodeSettings | None = None,
    document_tokens: int | None = None,
    summary_tokens: int | None = None,
    seed: int = 0,
    batch_size: int = 16,
    name: str = "",
    out: str | Path | None = None,
    quiet: bool = True,
) -> dict[str, Any]:
    """Summarise every document; None: `summary_settings`, 3/4 of the context to read, the rest to write."""
    document_tokens, summary_tokens = lengths(model, document_tokens, summary_tokens)
    settings = replace(settings or summary_settings(model.config.family), max_new_tokens=summary_tokens)
    subject = {
        "model": describe(model, name),
        "data": {
            "source": documents.source,
            "pairs": len(documents.pairs),
            "fingerprint": documents.fingerprint,
        },
        "seed": seed,
        "settings": described(settings),
        "document_tokens": document_tokens,
        "summary_tokens": summary_tokens,
    }
    rouge = rouge_scorer()
    with Work("summarisation", subject, out, quiet) as work:
        keys = [str(row) for row in range(len(documents.pairs))]
        timed, seconds = 0, 0.0
        for batch in work.batches(keys, batch_size, "summarising"):
            pieces: dict[str, dict[str, Any]] = {}
            seeds = [seed + int(key) for key in batch]
            pairs = [documents.pairs[int(key)] for key in batch]
            start = time.perf_counter()  # `generate` ends with tokens on the CPU: the device has finished too
            prompts = [prompt_of(model, document, document_tokens) for document, _ in pairs]
            ids = [ids for ids, _ in prompts]
            written = generate(model, ids, seed=seeds, batch_size=len(pairs), settings=settings)
            timed, seconds = timed + len(batch), seconds + time.perf_counter() - start
            for row, (key, (document, reference)) in enumerate(zip(batch, pairs, strict=True)):
                pieces[key] = {
                    "text": written.texts[row],
                    "tokens": len(written.tokens[row]),
                    "forward_passes": written.forward_passes[row],
                    "cache_passes": written.cache_passes[row],
                    "truncated": prompts[row][1],
                    "reference_too_long": len(_encode(model, reference)) > summary_tokens,
                    "rouge": rouge(reference, written.texts[row]),
                    "lead": rouge(reference, lead_sentence(document)),
                }
            work.add(pieces.items())
        return work.finish(
            {
                **_gather(work.values(keys)),
                "skipped": len(documents.skipped),
                "skipped_lines": list(documents.skipped),
                # Of this start alone: earlier ones may have had another batch size, or another machine.
                "ms_per_summary": 1000 * seconds / timed if timed else None,
                "timed": timed,
                "batch_size": batch_size,
            }
        )


def prompt_of(model: Model, document: str, document_tokens: int) -> tuple[list[int], bool]:
    """What a summary follows: the document and end-of-text, together at most `document_tokens` ids.

    Also returns whether the document was truncated. Training on summaries uses the same function.
    """
    ids = _encode(model, document)
    limit = document_tokens - 1
    return [*ids[:limit], model.config.eot_id], len(ids) > limit


def paper_settings(
    family: str, *, threshold: float = 0.9, infill: tuple[int, float] | None = None
) -> DecodeSettings:
    """How the paper decodes summaries: greedily; diffusion models keep what is sure enough at each step."""
    if family != "ar":
        return DecodeSettings(sampler="confidence", threshold=threshold, path="viterbi", infill=infill)
    if infill is not None:
        raise ConfigError("an AR model writes one token after the other and leaves no gaps: omit infill")
    return DecodeSettings(temperature=0.0)


def summary_settings(
    family: str, *, paper: bool = False, threshold: float = 0.9, infill: tuple[int, float] | None = None
) -> DecodeSettings:
    """How summaries are decoded: the paper's way if that is asked for.

    Summaries are padded with end-of-text to the end of their block. Padding is certain once it begins, so the
    most confident tokens are padding, and the best path of a block tends to be one that ends early.
    """
    settings = paper_settings(family, threshold=threshold, infill=infill)
    if paper or family == "ar":
        return settings
    return replace(settings, padded=True, path="lookahead" if family == "dadlm" else settings.path)


def lengths(model: Model, document: int | None, summary: int | None) -> tuple[int, int]:
    """How many ids to read and to write; each defaults to what the other leaves of the context."""
    context = model.config.context
    if document is None:
        document = context * 3 // 4 if summary is None else max(2, context - summary)
    if summary is None:
        summary = max(1, context - document)
    if document < 2 or summary < 1 or document + summary > context:
        raise ConfigError(
            f"document_tokens {document} (at least 2) and summary_tokens {summary} (at least 1) "
            f"must fit into the context of {context} together"
        )
    return document, summary


def _gather(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    names = ("tokens", "forward_passes", "cache_passes", "truncated", "reference_too_long")
    total = {name: sum(piece[name] for piece in pieces) for name in names}
    return {
        **_intervals([piece["rouge"] for piece in pieces]),
        "tpf": total["tokens"] / total["forward_passes"],
        "lead": _intervals([piece["lead"] for piece in pieces]),
        "references_too_long": total.pop("reference_too_long"),
        **total,
        "empty": sum(not piece["text"].strip() for piece in pieces),
    }


def _intervals(scores: list[list[float]]) -> dict[str, dict[str, float]]:
    """Each score and the average of the three, over all pairs."""
    table = torch.tensor(scores, dtype=torch.float64)
    columns = dict(zip(NAMES, table.unbind(1), strict=True)) | {"average": table.mean(1)}
    return {name: asdict(bootstrap(column)) for name, column in columns.items()}


def _encode(model: Model, text: str) -> list[int]:
    if model.tokenizer is None:
        raise ConfigError("this model has no tokenizer, so it cannot read documents")
    return model.tokenizer.encode(text)


NAMES = ("rouge1", "rouge2", "rougeL")

_END = re.compile(r"""[.!?]+["'”’)\]]*(?=\s|$)|\n""")
# The last word before a full stop that ends no sentence: one letter (initials, "U.S."), or one of these.
_SHORT = re.compile(
    r"(?:^|[\s(\"'.“‘])(?:[A-Za-z]|Mr|Mrs|Ms|Dr|Prof|Rev|Gen|Col|Sgt|Lt|Gov|Sen|Rep|Hon|St|Jr|Sr|No|vs|etc"
    r"|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Sept|Oct|Nov|Dec)\.$"
)


def rouge_scorer() -> Callable[[str, str], list[float]]:
    """A function of (reference, summary) that gives the three scores in the order of `NAMES`."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise ConfigError("ROUGE needs rouge-score: pip install 'dadlm[eval]'") from error
    scorer = RougeScorer(list(NAMES), use_stemmer=True)

    def scores(reference: str, summary: str) -> list[float]:
        by_name = scorer.score(reference, summary)
        return [100 * by_name[name].fmeasure for name in NAMES]

    return scores


def lead_sentence(document: str) -> str:
    """The first sentence: up to . ! or ? before white space, or to the end of the line.

    A full stop after one letter or a common abbreviation does not count. A heuristic that splits news well
    enough for a baseline.
    """
    document = document.strip()
    for end in _END.finditer(document):
        sentence = document[: end.end()].rstrip()
        if not _SHORT.search(sentence):
            return sentence
    return document

"""Tokens per cycle of the lossless mode: how good the drafts of different models are for one target.

Every draft model completes the same prompts with the same seeds. Whoever drafts, the texts are the target's,
so the comparison is fair; prompt lookup, which needs no model, is measured beside them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dadlm.decode import DecodeSettings, generate
from dadlm.decode.pair import LOOKUP
from dadlm.errors import ConfigError
from dadlm.evaluate.intervals import bootstrap, caution
from dadlm.evaluate.samples import PromptSet, prompt_set
from dadlm.evaluate.subject import describe
from dadlm.evaluate.text import about
from dadlm.evaluate.work import Work
from dadlm.model import Model
from dadlm.tokens import Rows


@dataclass(frozen=True, kw_only=True)
class AcceptanceSettings:
    """What is generated, and how it is drafted."""

    trees: Sequence[int] = (0, 16, 64)
    """Tree sizes (nodes) of the drafts; 0: a sampled chain."""
    drawn: bool = False
    """Sample the trees at temperatures above 0."""
    one_pass: bool = False
    """Where the target drafts for itself, make each draft in the pass that verifies the one before."""
    temperatures: Sequence[float] = (0.0, 1.0)
    """Temperatures of the target and its drafts; 0 is greedy. top_p is 1."""
    samples: int = 64
    """Prompts for each draft."""
    prompt_tokens: int | None = None
    """Tokens of each row used as the prompt. None: 64, or half of a context below 128."""
    new_tokens: int | None = 64
    """Tokens to generate. None: up to the end of the context."""
    seed: int = 0
    batch_size: int = 32


def acceptance(
    target: Model,
    drafts: Mapping[str, Model | None],
    rows: Rows,
    settings: AcceptanceSettings | None = None,
    *,
    name: str = "target",
    out: str | Path | None = None,
    quiet: bool = True,
    data: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Tokens per cycle of each draft model (None: prompt lookup), with intervals over prompts.

    `data` is what `rows_of` says of the rows; `options` are fields of the settings.
    """
    settings = replace(settings or AcceptanceSettings(), **options)
    if not drafts or not settings.trees or not settings.temperatures:
        raise ConfigError("nothing to measure: name at least one draft, one tree and one temperature")
    data = dict(data or about(rows))
    models = {"target": target} | {one: model for one, model in drafts.items() if model is not None}
    wanted = (settings.prompt_tokens, settings.new_tokens, settings.samples, settings.seed)
    prompts = prompt_set(models, rows, data.get("source"), *wanted)
    plain = DecodeSettings(mode="lossless", top_p=1.0, max_new_tokens=prompts.new_tokens)
    ways = [
        replace(plain, tree=tree, drawn=settings.drawn and bool(tree and heat), temperature=heat)
        for heat in settings.temperatures
        for tree in settings.trees
    ]
    subject = {
        "model": describe(target, name),
        "drafts": [
            {"name": one, "family": LOOKUP} if model is None else describe(model, one)
            for one, model in drafts.items()
        ],
        "data": data,
        "seed": settings.seed,
        "samples": settings.samples,
        "prompt_tokens": prompts.prompt_tokens,
        "new_tokens": prompts.new_tokens,
    }
    lines = []
    with Work("acceptance", subject, out, quiet) as work:
        for how in ways:
            for one, draft in drafts.items():
                if draft is None and how.tree != max(settings.trees):
                    continue  # a lookup is one chain of so many tokens at most
                one_pass = settings.one_pass and draft is target
                used = replace(how, one_pass=one_pass)
                made = _measure(work, prompts, target, one, draft, used, settings.batch_size)
                drawn = how.drawn and draft is not None
                way = {"temperature": how.temperature, "tree": how.tree, "drawn": drawn, "one_pass": one_pass}
                lines.append({"draft": one, **way, **made})
        return work.finish({"rows": lines, "notes": caution(len(prompts.documents.unique()), "documents")})


def _measure(
    work: Work,
    prompts: PromptSet,
    target: Model,
    name: str,
    draft: Model | None,
    how: DecodeSettings,
    batch_size: int,
) -> dict[str, Any]:
    kind = "chain" if how.tree == 0 else f"{'drawn ' * how.drawn}tree of {how.tree}"
    kind += ", one pass" * how.one_pass
    label = f"{name}, {kind}, temperature {how.temperature:g}"
    run = f"{name}|{how.tree}|{how.temperature:g}" + "|drawn" * how.drawn + "|one pass" * how.one_pass
    keys = [f"{run}|{index}" for index in prompts.indices]
    for batch in work.batches(keys, batch_size, label):
        indices = [int(key.rpartition("|")[2]) for key in batch]
        given = [prompts.prompt(index) for index in indices]
        seeds = [prompts.seed + index for index in indices]
        made = generate(
            target,
            given,
            seed=seeds,
            batch_size=batch_size,
            draft=LOOKUP if draft is None else draft,
            settings=how,
        )
        counts = zip(made.tokens, made.cycles, made.forward_passes, strict=True)
        work.add(
            (key, {"tokens": len(tokens), "cycles": cycles, "forward_passes": passes})
            for key, (tokens, cycles, passes) in zip(batch, counts, strict=True)
        )
    tokens, cycles, passes = (
        torch.tensor([one[field] for one in work.values(keys)])
        for field in ("tokens", "cycles", "forward_passes")
    )
    return {
        "tokens_per_cycle": asdict(bootstrap(tokens, prompts.documents, per=cycles)),
        "tokens_per_forward": asdict(bootstrap(tokens, prompts.documents, per=passes)),
    }

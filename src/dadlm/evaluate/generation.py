"""Open-ended generation, the paper's main comparison: how good completions are, and what they cost.

Quality is MAUVE against how the rows really continue, perplexity under a judge, and what can be counted in
the tokens; cost is tokens per forward pass (TPF), raw and adjusted by the time a step takes.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dadlm.decode.picture import new_figure
from dadlm.errors import ConfigError
from dadlm.evaluate.intervals import bootstrap, caution
from dadlm.evaluate.language_models import Scored
from dadlm.evaluate.mauve import FEWEST, check_installed
from dadlm.evaluate.pareto import draw_pareto
from dadlm.evaluate.presets import DRAWING, Configuration, configurations_for
from dadlm.evaluate.quality import Readers, closeness, reference_free
from dadlm.evaluate.samples import PromptSet, file_name, make_samples, prompt_set, write_samples
from dadlm.evaluate.step_times import Run, speed_up, step_times
from dadlm.evaluate.subject import describe
from dadlm.evaluate.text import about
from dadlm.evaluate.work import Work
from dadlm.model import Model
from dadlm.tokens import Rows

ENOUGH = 1000
"""Samples from which on MAUVE begins to settle; the paper has 5,000."""


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """What is generated, and which models score it."""

    configurations: Sequence[str | Configuration] = ("quick",)
    """Names of presets, single configurations such as
    T=8/infill=2,0.5, or `Configuration` objects (`presets.py`)."""
    samples: int = 200
    """Texts for each model and configuration; 5,000 in the paper."""
    prompt_tokens: int | None = None
    """Tokens of each row used as the prompt. None: 64, or half of a context below 128."""
    new_tokens: int | None = None
    """Tokens to generate. None: up to the end of the context."""
    embedder: str | None = "smollm2"
    """Language model whose features MAUVE compares. None: no MAUVE."""
    judge_lm: str | None = "smollm2"
    """Language model that computes the perplexity. None: no perplexity."""
    seed: int = 0
    batch_size: int = 32


def generation(
    models: Mapping[str, Model],
    rows: Rows,
    settings: GenerationSettings | None = None,
    *,
    out: str | Path | None = None,
    quiet: bool = True,
    data: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Complete prompts by every model in every configuration, and measure the texts.

    `data` is what `rows_of` says of the rows; `options` are fields of the settings.
    """
    settings = replace(settings or GenerationSettings(), **options)
    runs = _runs(models, settings.configurations)
    data = dict(data or about(rows))
    wanted = (settings.prompt_tokens, settings.new_tokens, settings.samples, settings.seed)
    prompts = prompt_set(models, rows, data.get("source"), *wanted)
    folder = None if out is None else Path(out)
    _check(prompts, settings, folder)
    device = str(next(iter(models.values())).device)
    readers = Readers(settings.embedder, settings.judge_lm, device, folder and folder / "features", quiet)
    described = {name: describe(model, name) for name, model in models.items()}
    subject = {
        "models": list(described.values()),
        "data": data,
        "seed": settings.seed,
        "prompt_tokens": prompts.prompt_tokens,
        "new_tokens": prompts.new_tokens,
    }
    lines: list[dict[str, Any]] = []
    with Work("generation", subject, out, quiet) as work:
        # Read first: a reader that fails should do so before hours of generation.
        texts = [prompts.tokenizer.decode(ids) for ids in prompts.truth]
        truth = readers.read("the true continuations", prompts.texts[: len(texts)], texts)
        times = step_times(work, models, runs, prompts, settings.batch_size)
        for run in runs:
            name, configuration = run
            made = make_samples(work, prompts, name, models[name], configuration, settings.batch_size)
            if folder is not None:
                write_samples(folder / "samples", prompts, described[name], configuration, made)
            texts = [sample["text"] for sample in made]
            reading = readers.read(f"{name}, {configuration.label}", prompts.texts, texts)
            lines.append(
                {
                    **who(described[name], configuration),
                    "samples": settings.samples,
                    "mauve": _mauve(work, run, truth, reading),
                    **reference_free(reading, [sample["tokens"] for sample in made], prompts.documents),
                    **cost_of(made, prompts.documents, speed_up(run, runs, described, times)),
                    "ms_per_step": times[name]["configurations"][configuration.label]["ms_median"],
                    "empty": sum(not text.strip() for text in texts),
                }
            )
        embedder = readers.embedder and readers.embedder.label
        result = work.finish(
            {
                "samples": settings.samples,
                "embedder": embedder,
                "judge_lm": readers.judge and readers.judge.label,
                "readers": readers.identities,
                "latency": times,
                "reference": reference_free(truth, prompts.truth, prompts.documents[: len(prompts.truth)]),
                "rows": lines,
                "notes": _notes(prompts, lines, embedder),
            }
        )
    if folder is not None and any(row["mauve"] or row["judge_perplexity"] for row in lines):
        draw_pareto(result, folder / "pareto")
    return result


def _runs(models: Mapping[str, Model], configurations: Sequence[str | Configuration]) -> list[Run]:
    if not models:
        raise ConfigError("no models to compare")
    runs = [(name, one) for name in models for one in configurations_for(models[name].config, configurations)]
    files = [file_name(name, configuration.label) for name, configuration in runs]
    if len(set(files)) < len(files) or not all(models):
        raise ConfigError(f"give models names that differ in letters or digits, got {', '.join(models)}")
    return runs


def _check(prompts: PromptSet, settings: GenerationSettings, folder: Path | None) -> None:
    """What would fail after hours of generation fails here."""
    if settings.batch_size < 1:
        raise ConfigError(f"batch_size must be at least 1, got {settings.batch_size}")
    if settings.embedder is not None:
        if min(settings.samples, len(prompts.rows)) < FEWEST:
            raise ConfigError(
                f"MAUVE needs at least {FEWEST} samples and as many rows of text, here are "
                f"{settings.samples} and {len(prompts.rows)}: take more, or leave it out with --embedder none"
            )
        check_installed()
    if folder is not None:
        new_figure(1, 1)


def who(metadata: Mapping[str, Any], configuration: Configuration) -> dict[str, Any]:
    return {
        "model": metadata["name"],
        "family": metadata["family"],
        "block_size": metadata.get("block_size"),
        "denoising": configuration.denoising,
        "infill": configuration.infill,
        "configuration": configuration.label,
        "settings": configuration.described(),
    }


def _mauve(work: Work, run: Run, truth: Scored, reading: Scored) -> dict[str, float] | None:
    """Kept like samples, because with thousands of them it takes minutes."""
    if truth.features is None or reading.features is None:
        return None
    name, configuration = run
    features = hashlib.sha256(truth.features.tobytes() + reading.features.tobytes()).hexdigest()[:16]
    key = f"mauve|{name}|{configuration.label}|{features}"
    if key not in work.pieces:
        work.add([(key, closeness(truth, reading, work.subject["seed"]))])
    return work.pieces[key]


def cost_of(samples: Sequence[Mapping[str, Any]], documents: Tensor, faster: float | None) -> dict[str, Any]:
    tokens = torch.tensor([len(sample["tokens"]) for sample in samples])
    forward = torch.tensor([sample["forward_passes"] for sample in samples])
    cache = sum(sample["cache_passes"] for sample in samples)
    tpf = bootstrap(tokens, documents, per=forward)
    return {
        "tokens": int(tokens.sum()),
        "forward_passes": int(forward.sum()),
        "cache_passes": cache,
        "raw_tpf": tpf.mean,
        "raw_tpf_interval": asdict(tpf),
        "tpf_with_cache_passes": int(tokens.sum()) / (int(forward.sum()) + cache),
        "adjusted_tpf": None if faster is None else faster * tpf.mean,
    }


def _notes(prompts: PromptSet, lines: Sequence[Mapping[str, Any]], embedder: str | None) -> list[str]:
    """What a reader of the table must know."""
    notes = caution(len(prompts.documents.unique()), "documents (or runs of rows of a single one)")
    if embedder is not None:
        notes.append(
            f"MAUVE from features of {embedder}; the paper's are of GPT-2-Large: compare rows here, "
            "not with other tables."
        )
        if len(prompts.indices) < ENOUGH:
            notes.append(f"MAUVE of {len(prompts.indices)} samples means little; take at least {ENOUGH:,}.")
    if len(prompts.indices) > len(prompts.rows):
        notes.append(
            f"Only {len(prompts.rows)} rows for {len(prompts.indices)} samples: prompts repeat, with other "
            "seeds. Of real text there is less, so its share of distinct n-grams is higher."
        )
    if lone := [row for row in lines if row["adjusted_tpf"] is None and row["block_size"]]:
        notes.append(
            f"No adjusted TPF ({_counted(Counter(row['model'] for row in lone))} configurations): it needs a "
            "BD3LM of the same block size and configuration in the same run, and of both a step to time "
            "that does not begin a block."
        )
    drawn = {tuple(row["settings"].get(name) for name in DRAWING) for row in lines}
    if len(drawn) > 1 and any(row["family"] == "ar" for row in lines):
        notes.append(f"Configurations differ in {', '.join(DRAWING)}: AR has the defaults.")
    for field, what in (
        ("empty", "Empty generations (end-of-text at once), measured as they are"),
        ("cut", "Texts longer than what a language model reads, measured as far as that"),
    ):
        if some := _counted({f"{row['model']} {row['configuration']}": row[field] for row in lines}):
            notes.append(f"{what}: {some}.")
    return notes


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in counts.items() if count)

"""Open-ended generation, the paper's main comparison: how good completions are, and what they cost.

Every model completes the same prompts in every configuration. Quality is MAUVE against how the rows really
go on, perplexity under a judge, and what can be counted in the tokens; cost is tokens per forward pass (TPF),
plain and adjusted by the time a step takes. Knows nothing of how texts are made, read or drawn.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from dadlm.decode.picture import new_figure
from dadlm.errors import ConfigError
from dadlm.evaluate.features import Readers, Reading
from dadlm.evaluate.intervals import caution
from dadlm.evaluate.language_models import LanguageModel
from dadlm.evaluate.latency import device_name, time_updates
from dadlm.evaluate.mauve import FEWEST
from dadlm.evaluate.pareto import draw_pareto
from dadlm.evaluate.presets import Configuration, configurations_for
from dadlm.evaluate.quality import alone, closeness
from dadlm.evaluate.samples import Task, file_name, make_samples, task_for, write_samples
from dadlm.evaluate.subject import describe
from dadlm.evaluate.text import about
from dadlm.evaluate.work import Work
from dadlm.model import Model
from dadlm.tokens import Rows

ENOUGH = 1000
"""Samples from which on MAUVE begins to settle; the paper has 5,000."""
_WARMUPS = (10, 2, 2)  # before each turn of timing

Run = tuple[str, Configuration]
"""The name of a model and how it decodes."""


def generation(
    models: Mapping[str, Model],
    rows: Rows,
    *,
    configurations: Sequence[str | Configuration] = ("quick",),
    samples: int = 200,
    prompt_tokens: int | None = None,
    new_tokens: int | None = None,
    embedder: str | None = "smollm2",
    judge_lm: str | None = "smollm2",
    seed: int = 0,
    batch_size: int = 32,
    out: str | Path | None = None,
    quiet: bool = True,
    data: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Complete prompts by every model in every configuration, and measure the texts.

    `prompt_tokens` None: 64, or half a context below 128; `new_tokens` None: to the end of the context.
    `embedder` gives MAUVE its features and `judge_lm` the perplexity; None leaves either out.
    """
    runs = _runs(models, configurations)
    task = task_for(models, rows, prompt_tokens, new_tokens, samples, seed)
    folder = None if out is None else Path(out)
    _check(task, batch_size, embedder, folder)
    device = str(next(iter(models.values())).device)
    readers = Readers(embedder, judge_lm, device, folder and folder / "features", quiet)
    described = {name: describe(model, name) for name, model in models.items()}
    subject = {
        "models": list(described.values()),
        "data": dict(data or about(rows)),
        "seed": seed,
        "prompt_tokens": task.prompt_tokens,
        "new_tokens": task.new_tokens,
    }
    with Work("generation", subject, out, quiet) as work:
        # Read first: a reader that cannot serve is told before hours of generation.
        truth = _read_truth(readers, task)
        latency = _latency(work, models, task, batch_size)
        lines = []
        for run in runs:
            name, configuration = run
            made = make_samples(work, task, name, models[name], configuration, batch_size)
            if folder is not None:
                write_samples(folder / "samples", task, described[name], configuration, made)
            texts = [sample["text"] for sample in made]
            reading = readers.read(f"{name}, {configuration.label}", task.prompts, texts)
            lines.append(
                {
                    **_who(described[name], configuration),
                    "samples": samples,
                    "mauve": _mauve(work, run, truth, reading, readers.embedder, samples),
                    **alone(reading, [sample["tokens"] for sample in made]),
                    **_cost(made, _speed_up(name, described, latency)),
                    "empty": sum(not text.strip() for text in texts),
                }
            )
        result = work.finish(
            {
                "samples": samples,
                "embedder": readers.embedder and readers.embedder.label,
                "judge_lm": readers.judge and readers.judge.label,
                "latency": latency,
                "reference": alone(truth, task.truth),
                "rows": lines,
                "notes": _notes(task, lines, readers.embedder and readers.embedder.label),
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


def _check(task: Task, batch_size: int, embedder: str | None, folder: Path | None) -> None:
    """What would fail after hours of generation fails here."""
    if task.samples < 1 or batch_size < 1:
        raise ConfigError(f"samples and batch_size must be at least 1, got {task.samples} and {batch_size}")
    if embedder is not None:
        if min(task.samples, len(task.rows)) < FEWEST:
            raise ConfigError(
                f"MAUVE needs at least {FEWEST} samples and as many rows of text, here are "
                f"{task.samples} and {len(task.rows)}: take more, or leave it out with --embedder none"
            )
        if find_spec("mauve") is None:
            raise ConfigError(
                "MAUVE needs mauve-text: pip install 'dadlm[eval]', or leave it out with --embedder none"
            )
    if folder is not None:
        new_figure(1, 1)


def _latency(
    work: Work, models: Mapping[str, Model], task: Task, batch_size: int
) -> dict[str, dict[str, Any]]:
    """Milliseconds of a step of each model, in turns: a machine that is busy for a while slows all alike."""
    device = device_name(next(iter(models.values())))
    key = f"latency|{device}|{batch_size}"
    for _ in work.batches([key], 1, "latency"):
        prompts = [task.prompt(index) for index in range(batch_size)]
        took: dict[str, list[float]] = {name: [] for name in models}
        for warmup in _WARMUPS:
            for name, model in models.items():
                took[name] += time_updates(model, prompts, steps=4, warmup=warmup, seed=task.seed)
        work.add([(key, {name: median(times) if times else None for name, times in took.items()})])
    return {
        name: {"ms_median": milliseconds, "batch_size": batch_size, "device": device}
        for name, milliseconds in work.pieces[key].items()
    }


def _speed_up(
    name: str, described: Mapping[str, Mapping[str, Any]], latency: Mapping[str, Mapping[str, Any]]
) -> float | None:
    """BD3LM's time of a step over this model's, at the same block size; None: nothing to compare with."""
    if described[name]["family"] == "bd3lm":
        return 1.0
    wanted = ("bd3lm", described[name].get("block_size"))
    same = (
        latency[other]["ms_median"]
        for other, facts in described.items()
        if (facts["family"], facts.get("block_size")) == wanted
    )
    base, own = next(same, None), latency[name]["ms_median"]
    return base / own if base and own else None


def _who(facts: Mapping[str, Any], configuration: Configuration) -> dict[str, Any]:
    return {
        "model": facts["name"],
        "family": facts["family"],
        "block_size": facts.get("block_size"),
        "denoising": configuration.denoising,
        "infill": configuration.infill,
        "configuration": configuration.label,
        "settings": configuration.described(),
    }


def _mauve(
    work: Work, run: Run, truth: Reading, reading: Reading, embedder: LanguageModel | None, samples: int
) -> dict[str, float] | None:
    """Kept like samples, because thousands of them take minutes."""
    if embedder is None:
        return None
    name, configuration = run
    key = f"mauve|{embedder.label}|{samples}|{name}|{configuration.label}"
    if key not in work.pieces:
        work.add([(key, closeness(truth, reading, work.subject["seed"]))])
    return work.pieces[key]


def _cost(samples: Sequence[Mapping[str, Any]], speed_up: float | None) -> dict[str, Any]:
    tokens = sum(len(sample["tokens"]) for sample in samples)
    forward, cache = (sum(sample[name] for sample in samples) for name in ("forward_passes", "cache_passes"))
    return {
        "tokens": tokens,
        "forward_passes": forward,
        "cache_passes": cache,
        "raw_tpf": tokens / forward,
        "tpf_with_cache_passes": tokens / (forward + cache),
        "adjusted_tpf": None if speed_up is None else speed_up * tokens / forward,
    }


def _read_truth(readers: Readers, task: Task) -> Reading:
    texts = [task.tokenizer.decode(ids) for ids in task.truth]
    return readers.read("the true continuations", task.prompts[: len(texts)], texts)


def _notes(task: Task, lines: Sequence[Mapping[str, Any]], embedder: str | None) -> list[str]:
    """What a reader of the table must know."""
    notes = caution(task.samples, "samples")
    if embedder is not None:
        notes.append(
            f"MAUVE from features of {embedder}; the paper's are of GPT-2-Large: compare rows here, "
            "not with other tables."
        )
        if task.samples < ENOUGH:
            notes.append(f"MAUVE of {task.samples} samples means little; take at least {ENOUGH:,}.")
    if task.samples > len(task.rows):
        notes.append(
            f"Only {len(task.rows)} rows for {task.samples} samples: prompts repeat, with other seeds."
        )
    if lone := [row["model"] for row in lines if row["adjusted_tpf"] is None and row["block_size"]]:
        notes.append(
            f"No adjusted TPF for {', '.join(dict.fromkeys(lone))}: it needs a BD3LM of the same block size "
            "in the same run, and texts long enough to time a step."
        )
    if empty := [row for row in lines if row["empty"]]:
        counts = ", ".join(f"{row['model']} {row['configuration']}: {row['empty']}" for row in empty)
        notes.append(f"Empty generations (end-of-text at once), measured as they are: {counts}.")
    return notes

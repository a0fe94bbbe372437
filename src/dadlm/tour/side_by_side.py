"""The models that ship with the package complete one prompt, side by side; AR judges by its perplexity."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dadlm.decode import DecodeSettings, StepEvent, generate, stream
from dadlm.decode.picture import draw_step, new_figure
from dadlm.errors import ConfigError
from dadlm.model import Model, load
from dadlm.model.files import write_json
from dadlm.objective import losses
from dadlm.threads import one_thread

TEXTS, NEW_TOKENS = 8, 96
SYSTEMS = {"AR": "ar", "BD3LM": "bd3lm", "DA-DLM": "dadlm"}
LEFT = ("prompt.json", "dag.svg", "dag.png")  # files that it writes


@one_thread()
def complete_side_by_side(out: Path, prompt: str, seed: int = 0, quiet: bool = False) -> dict[str, Any]:
    """Complete, measure, draw; returns (and writes to prompt.json) every number that is shown."""
    new_figure(1, 1)  # fails at once where the extra is missing
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; choose another --out")
    console = Console(quiet=quiet, highlight=False)
    models = {system: load(name) for system, name in SYSTEMS.items()}
    rows = []
    for row in completions(models, prompt, seed, judge=models["AR"]):
        console.print(Text.assemble((row.system, "bold"), f", {row.decoding}"))
        console.print(Padding(Text.assemble((prompt, "dim"), row.text), (0, 0, 1, 2)))
        rows.append(row)
    _compare(rows, console)
    out.mkdir(parents=True, exist_ok=True)
    event = _instructive(stream(models["DA-DLM"], prompt, seed=seed, sampler="random"))
    for file in LEFT[1:]:
        draw_step(event, out / file, title=f"DA-DLM after “{prompt}”")
    result = {"prompt": prompt, "seed": seed, "texts": TEXTS, "rows": [asdict(row) for row in rows]}
    write_json(out / LEFT[0], result)
    console.print(f"\npicture: {out}/dag.svg (one step of DA-DLM, its graph); also as .png", markup=False)
    return result


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One system under one way of decoding."""

    system: str
    decoding: str
    text: str
    """The first of the texts."""
    seconds: float
    """Wall-clock of that text, decoded alone."""
    tokens: float
    """Mean tokens of a text."""
    forward_passes: float
    """Mean forward passes of a text."""
    tokens_per_forward: float
    """All tokens over all passes."""
    judge_perplexity: float
    """Of all texts, given the prompt."""


def completions(models: Mapping[str, Model], prompt: str, seed: int, judge: Model) -> Iterator[Completion]:
    """Each system under each way of decoding, as soon as it is measured; text i has the seed `seed` + i."""
    for system, model in models.items():
        if model.tokenizer is None:
            raise ConfigError("a model without a tokenizer cannot read a prompt")
        ids = model.tokenizer.encode(prompt) or [model.config.eot_id]
        N, context = model.config.block_size, model.config.context
        # To the end of a block: tokens beyond the end would cost passes and not count.
        new_tokens = max(1, min(len(ids) + NEW_TOKENS, context) // N * N - len(ids))
        generate(model, [ids], seed=seed, max_new_tokens=1)  # warm-up
        for decoding, options in _ways(model).items():
            # Top-p that means the same to all of them: see docs/maths.md, 11.
            settings = DecodeSettings(max_new_tokens=new_tokens, nucleus="position", **options)
            start = time.perf_counter()
            first = generate(model, [ids], seed=seed, settings=settings)
            seconds = time.perf_counter() - start
            out = generate(model, [ids] * TEXTS, seed=seed, settings=settings)
            tokens, passes = sum(map(len, out.tokens)), sum(out.forward_passes)
            nats = sum(_nats(judge, ids, one) for one in out.tokens)
            yield Completion(
                system=system,
                decoding=decoding,
                text=first.texts[0],
                seconds=seconds,
                tokens=tokens / TEXTS,
                forward_passes=passes / TEXTS,
                tokens_per_forward=out.mean_tokens_per_forward,
                judge_perplexity=math.exp(nats / tokens),
            )


def _ways(model: Model) -> dict[str, dict[str, Any]]:
    """Ways of decoding by name: a token per step, or half and a quarter as many steps as tokens."""
    N = model.config.block
    few = {f"T={T}": {"sampler": "random", "steps": T} for T in (N // 2, N // 4) if T}
    return {"first-hitting" if few else "token by token": {}} | few


@torch.inference_mode()
def _nats(judge: Model, prompt: list[int], tokens: list[int]) -> float:
    """Negative log-likelihood of tokens after a prompt."""
    nll = losses(judge, torch.tensor([prompt + tokens], device=judge.device), None).train
    return float(nll[0, len(prompt) - 1 :].sum())


def _compare(rows: Sequence[Completion], console: Console) -> None:
    table = Table()
    table.add_column("system")
    table.add_column("decoding", no_wrap=True)
    for name in ("tokens", "forward\npasses", "tokens\nper pass", "seconds", "perplexity\nunder AR"):
        table.add_column(name, justify="right", no_wrap=True)
    for before, row in zip([None, *rows], rows, strict=False):
        if before is not None and before.system != row.system:
            table.add_section()
        counts = f"{row.tokens:.1f}", f"{row.forward_passes:.1f}", f"{row.tokens_per_forward:.2f}"
        costs = f"{row.seconds:.2f}", f"{row.judge_perplexity:.1f}"
        table.add_row(row.system, row.decoding, *counts, *costs)
    console.print(table)
    console.print(
        f"Means of {TEXTS} texts after one prompt; seconds: the first text alone, on one core.\n"
        "T: steps per block. Top-p 0.9, of each position (--nucleus position).\n"
        "AR is the judge of its own texts too, and lenient there.\n"
        "So few texts are a glimpse: `dadlm evaluate generation` measures."
    )


def _instructive(events: Iterable[StepEvent]) -> StepEvent:
    """The first step that enters with a quarter of its block known, or the last one of a shorter text."""
    event = None
    for event in events:
        if sum(event.anchor) >= len(event.anchor) / 4:
            break
    assert event is not None, "every text takes a step"
    return event

"""What the tour prints and draws."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from dadlm.decode import generate, stream
from dadlm.decode.picture import draw_step, new_figure, save_figure
from dadlm.evaluate import Interval
from dadlm.model import Model
from dadlm.tour.language import LENGTH, SUCCESSORS, Language
from dadlm.tour.measure import Validity

_COLOURS = ("#495057", "#f08c00", "#1c7ed6", "#2b8a3e")


def introduce(language: Language, console: Console) -> None:
    def phrase(number: int) -> str:
        return language.tokenizer.decode(language.phrases[number].tolist())

    console.print("[bold]A language whose truth is known.[/bold] After each phrase, one of four follows:")
    for successor in language.successors[0].tolist():
        console.print(f"  {phrase(0)} → {phrase(successor)}")
    say = "These differ at every position: a model that draws the four words independently mixes them up.\n"
    if language.shares_word:
        say = (
            "All share one word: a model that draws each word given its left neighbour (token edges, one "
            "node per position) forgets there which phrase it is in. A graph carries that past the word.\n"
        )
    console.print(say)


def write_text(file: Path, language: Language, seed: int) -> None:
    """Write the tour's validation text for `dadlm evaluate`: its tokens are these rows in order."""
    lines = [language.tokenizer.decode(row.tolist()) for row in language.validation(seed)]
    file.write_text("\n".join(lines), encoding="utf-8")


def show_samples(
    models: dict[str, Model], language: Language, walks: Tensor, seed: int, console: Console
) -> None:
    """Let the models continue the same phrases, one forward pass per phrase, and mark true successors."""
    console.print("[bold]Three phrases each in three forward passes[/bold] (✓: a true successor):")
    prompts = language.phrases[walks[:3, 0]].tolist()
    for name, model in models.items():
        how: dict[str, Any] = {"max_new_tokens": 3 * LENGTH, "sampler": "random", "steps": 1, "top_p": 1.0}
        for prompt, ids in zip(prompts, generate(model, prompts, seed=seed, **how).tokens, strict=True):
            blocks = [prompt, *(ids[at : at + LENGTH] for at in range(0, len(ids), LENGTH))]
            words = [_mark(language, *pair) for pair in pairwise(blocks)]
            line = (
                f"  {name:{max(map(len, models))}s} {language.tokenizer.decode(prompt)} → {' → '.join(words)}"
            )
            console.print(line, soft_wrap=True)
    console.print()


def _mark(language: Language, before: list[int], block: list[int]) -> str:
    """A block, marked as a true successor of the one before it or not."""
    known = (language.phrases == torch.tensor(before)).all(-1).nonzero()
    text = language.tokenizer.decode(block)
    if len(known) and len(block) == LENGTH and language.valid(known[0], torch.tensor([block])):
        return f"[green]{text} ✓[/green]"
    return f"[red]{text} ✗[/red]"


def report(
    divergences: dict[str, float],
    shares: dict[str, list[Validity]],
    difference: Interval,
    pair: tuple[str, str],
    language: Language,
    console: Console,
) -> None:
    """`difference` is between the models of `pair`, the first minus the second."""
    chance = SUCCESSORS ** (1 + language.shares_word - LENGTH)
    table = Table(title="Blocks that are a true successor of the block before (1,024 each)")
    table.add_column("steps per block")
    for name in ("TPF", *shares, "words drawn independently"):
        table.add_column(name, justify="right")
    for rows in zip(*shares.values(), strict=True):
        steps = rows[0].steps
        valid = [f"{row.valid:.1%}" for row in rows]
        independent = f"{chance:.1%}" if steps == 1 else ""
        table.add_row(str(steps), f"{rows[0].tokens_per_forward:.2f}", *valid, independent)
    table.add_section()
    kl = [f"{value:.3f}" for value in divergences.values()]
    table.add_row("KL(truth ‖ model)", "", *kl, f"C = {language.total_correlation:.3f}")
    console.print(table)
    console.print(
        "TPF: tokens per forward pass. KL: of a fully masked block, in nats.\n"
        "C: no predictor that draws the words independently gets below it.\n"
        f"Reconstruction, {pair[0]} minus {pair[1]}, nats per token: {difference} (95%)"
    )


def folder(name: str) -> str:
    """The folder of a model: "DA-DLM, edges" is in dadlm-edges."""
    return name.lower().replace("-", "").replace(", ", "-")


def draw(out: Path, models: dict[str, Model], language: Language, start: float, walks: Tensor) -> None:
    """Draw the models' curves from their common start, and a block's graph by the last model."""
    curves = {name: read_curve(out / folder(name) / "metrics.jsonl") for name in models}
    name, model = list(models.items())[-1]
    prompt = language.phrases[walks[0]].flatten().tolist()
    how: dict[str, Any] = {"max_new_tokens": LENGTH, "sampler": "random", "steps": 1, "path": "viterbi"}
    event = next(iter(stream(model, prompt, seed=0, **how)))
    after = language.tokenizer.decode(prompt[-LENGTH:])
    for ending in ("svg", "png"):
        draw_curve(curves, language.total_correlation, start, out / f"divergence.{ending}")
        draw_step(event, out / f"dag.{ending}", title=f"{name} after “{after}”")


def read_curve(metrics: Path) -> list[tuple[int, float]]:
    """(step, divergence) pairs of a run."""
    entries = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    return [(entry["step"], entry["divergence"]) for entry in entries if "divergence" in entry]


def draw_curve(curves: dict[str, list[tuple[int, float]]], bound: float, start: float, file: Path) -> None:
    """Divergence during training: one line per model from the same start, and the bound C."""
    figure = new_figure(7, 4.2)
    axes = figure.add_subplot()
    for (name, curve), colour in zip(curves.items(), _COLOURS, strict=False):
        steps, values = zip((0, start), *curve, strict=True)
        axes.plot(steps, values, marker="o", ms=3.5, color=colour, label=name)
    axes.axhline(bound, color="#c92a2a", ls="--", lw=1.2)
    label, place = "C: no model that draws words independently gets below", axes.get_yaxis_transform()
    axes.text(1, bound - 0.08, label, va="top", ha="right", color="#c92a2a", transform=place)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("training steps after the common BD3LM")
    axes.set_ylabel("KL(truth ‖ model) of a masked block, nats")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    save_figure(figure, file)

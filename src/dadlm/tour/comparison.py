"""What is printed and drawn where systems complete a prompt side by side."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dadlm.decode import StepEvent, stream
from dadlm.decode.picture import draw_step
from dadlm.model import Model
from dadlm.tour.completions import TEXTS, Completion


def show_text(prompt: str, row: Completion, console: Console) -> None:
    console.print(Text.assemble((row.system, "bold"), f", {row.decoding}"))
    console.print(Padding(Text.assemble((prompt, "dim"), row.text), (0, 0, 1, 2)))


def compare(rows: Sequence[Completion], console: Console) -> None:
    table = Table()
    table.add_column("system")
    table.add_column("decoding", no_wrap=True)
    for name in ("tokens", "forward\npasses", "tokens\nper pass", "seconds", "perplexity\nunder AR"):
        table.add_column(name, justify="right", no_wrap=True)
    for before, row in zip([None, *rows], rows, strict=False):
        if before is not None and before.system != row.system:
            table.add_section()
        table.add_row(
            row.system,
            row.decoding,
            f"{row.tokens:.1f}",
            f"{row.forward_passes:.1f}",
            f"{row.tokens_per_forward:.2f}",
            f"{row.seconds:.2f}",
            f"{row.judge_perplexity:.1f}",
        )
    console.print(table)
    console.print(
        f"Means of {TEXTS} texts after one prompt; seconds: the first text alone, on one core.\n"
        "T: steps per block. Top-p 0.9, of each position (--nucleus position).\n"
        "AR is the judge of its own texts too, and lenient there.\n"
        "So few texts are a glimpse: `dadlm evaluate generation` measures."
    )


def draw(model: Model, prompt: str, seed: int, out: Path) -> None:
    """The graph of a step in which some tokens are known and some are not."""
    event = _telling(stream(model, prompt, seed=seed, sampler="random"))
    for ending in ("svg", "png"):
        draw_step(event, out / f"dag.{ending}", title=f"DA-DLM after “{prompt}”")


def _telling(events: Iterable[StepEvent]) -> StepEvent:
    """The first step that enters with a quarter of its block known, or the last one of a shorter text."""
    event = None
    for event in events:
        if sum(event.anchor) >= len(event.anchor) / 4:
            break
    assert event is not None, "every text takes a step"
    return event

"""A denoising step in the terminal: one row per position, one column per candidate, the path lit."""

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dadlm.decode.events import StepEvent

_AFTER = 12  # columns for the token that stands there after the step
_LINE = 18  # columns that a node wants to stand in one line; with fewer it takes two


def show_step(event: StepEvent, console: Console) -> None:
    """Print a step: its graph, and the block's tokens after it."""
    candidates = max(len(group) for group in event.top_tokens)
    title = f"block {event.block}, step {event.step}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    # Left to itself a full table would take the room it lacks from the narrow columns, which say most.
    drawn = 11 if event.has_edges else 5
    room = (console.width - 3 - drawn - _AFTER - (candidates + 3)) // candidates
    table.add_column("", no_wrap=True, width=2)
    for k in range(candidates):
        table.add_column(f"node {k}", overflow="ellipsis", no_wrap=True, max_width=max(room, 6))
    between = " " if room >= _LINE else "\n "
    table.add_column("drawn", no_wrap=True, width=drawn)
    table.add_column("after", no_wrap=True, overflow="ellipsis", min_width=_AFTER, max_width=_AFTER)
    for i, text in enumerate(event.texts):
        cells = [_node(event, i, k, between) for k in range(len(event.top_tokens[i]))]
        spare = [""] * (candidates - len(cells))
        table.add_row(str(i), *cells, *spare, _drawn(event, i), _after(event, i, text))
    console.print(table)
    legend = (
        "▸ path; likeliest token, transition to the node, the token's probability; drawn: the drawn one's"
    )
    legend += ", (without its left neighbour)" if event.has_edges else ""
    console.print(f"{legend}; ◆ infilled", style="dim")


def _node(event: StepEvent, i: int, k: int, between: str) -> Text:
    """The node's best token, the transition from the path's node before, and the token's probability."""
    if not event.top_tokens[i][k]:
        return Text("")
    _, token, p = event.top_tokens[i][k][0]
    if event.anchor[i]:
        return Text(token, style="bold cyan")
    source = event.path[i - 1] if i else 0
    chosen = event.path[i] == k
    cell = f"{token}{between}{event.transition[i][source][k]:.2f} {p:.2f}"
    return Text(("▸" if chosen else " ") + cell, style="bold yellow" if chosen else "dim")


def _drawn(event: StepEvent, i: int) -> Text:
    """The probability of the drawn token, with and, where there are token edges, without them."""
    given, alone = event.probability[i], event.alone[i]
    if given is None or alone is None:
        return Text("")
    return Text(
        f"{given:.2f} ({alone:.2f})" if event.has_edges else f"{given:.2f}",
        style="bold" if event.fixed[i] else "dim",
    )


def _after(event: StepEvent, i: int, text: str) -> Text:
    if event.anchor[i]:
        return Text(text, style="cyan")
    if event.infilled[i]:
        return Text(f"◆ {text}", style="bold magenta")
    return Text(text, style="bold green") if event.fixed[i] else Text("▢", style="dim")

"""One step's graph as a picture (SVG, PNG or PDF by the file's name)."""

import warnings
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from dadlm.decode.events import StepEvent
from dadlm.errors import ConfigError
from dadlm.model.files import whole_file

_ANCHOR, _NODE, _PATH, _EDGE = "#0b7285", "#f1f3f5", "#f08c00", "#495057"
_DECIDED, _INFILLED = "#2b8a3e", "#862e9c"
_LINE = 0.3  # between the lines below the graph
_FORMATS = (".svg", ".png", ".pdf")


def draw_step(event: StepEvent, file: str | Path, title: str | None = None) -> None:
    """Groups as columns, candidates with their best token, transitions by thickness, the path lit.

    Below the graph stand the tokens that are known after the step, and how probable the drawn ones were.
    """
    check_name(file)
    figure = _figure_of(event, title)
    try:
        save_figure(figure, file)
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror or error}") from None


def svg_of(event: StepEvent) -> str:
    """The same as SVG text."""
    buffer = BytesIO()
    save_figure(_figure_of(event), buffer, "svg")
    return buffer.getvalue().decode()


def _figure_of(event: StepEvent, title: str | None = None):
    figure, axes = _canvas(event)
    _label(axes, -1, 0.0, "start", _EDGE, bbox=_box("white", "#adb5bd", 0.8))
    for i, group in enumerate(event.top_tokens):
        for k, tokens in enumerate(group):
            if tokens:
                _edges_into(axes, event, i, k)
                _node(axes, event, i, k)
    _after(axes, event)
    title = title or f"block {event.block}, step {event.step}"
    axes.set_title(title, loc="left", fontsize=11, parse_math=False)
    return figure


def check_name(file: str | Path) -> None:
    """Whether a picture can have this name."""
    if Path(file).suffix.lower() not in _FORMATS:
        raise ConfigError(f"cannot draw {file}: choose a name that ends in {', '.join(_FORMATS)}")
    if not Path(file).parent.is_dir():
        raise ConfigError(f"cannot write {file}: there is no folder {Path(file).parent}")


def new_figure(width: float, height: float):
    """An empty figure by the object interface, which needs no display and no global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("pictures need matplotlib: pip install 'dadlm[figures]'") from None
    return Figure(figsize=(width, height))


def save_figure(figure, to: str | Path | BinaryIO, ending: str | None = None, dpi: int = 150) -> None:
    """Write a figure, as its name ends or as told. The same numbers give the same SVG: no date, no chance.

    A script that the font lacks is drawn as boxes.
    """
    if not hasattr(to, "write"):
        with whole_file(Path(to)) as handle:  # type: ignore[arg-type]
            return save_figure(figure, handle, ending or Path(to).suffix[1:].lower(), dpi)  # type: ignore[arg-type]
    import matplotlib

    vector = (ending or str(to)).lower().endswith("svg")
    with matplotlib.rc_context({"svg.hashsalt": "dadlm"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        undated = {"Date": None} if vector else None
        figure.savefig(to, format=ending, bbox_inches="tight", dpi=dpi, metadata=undated)


def _canvas(event: StepEvent):
    groups, candidates = len(event.ids), _tallest(event)
    figure = new_figure(1.0 + 1.05 * groups, 0.9 + 0.68 * (candidates + _LINE * len(_rows(event))))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(-1.5, groups - 0.4)
    axes.set_ylim(-candidates / 2 - 0.45 - _LINE * len(_rows(event)), candidates / 2)
    axes.axis("off")
    return figure, axes


def _tallest(event: StepEvent) -> int:
    return max(len(group) for group in event.top_tokens)


def _height(event: StepEvent, i: int, k: int) -> float:
    """Candidates are stacked from the top; a group of one node sits in the middle."""
    if i < 0 or event.anchor[i]:
        return 0.0
    return (len(event.top_tokens[i]) - 1) / 2 - k


def _edges_into(axes, event: StepEvent, i: int, k: int) -> None:
    sources = range(1) if i == 0 else [j for j, tokens in enumerate(event.top_tokens[i - 1]) if tokens]
    for j in sources:
        p = event.transition[i][j][k]
        lit = event.path[i] == k and (i == 0 or event.path[i - 1] == j)
        if p < 0.02 and not lit:
            continue
        ends = [i - 1, i], [_height(event, i - 1, j), _height(event, i, k)]
        look = (
            {"color": _PATH, "alpha": 0.95, "zorder": 2} if lit else {"color": _EDGE, "alpha": 0.2 + 0.4 * p}
        )
        axes.plot(*ends, lw=0.4 + 3 * p, solid_capstyle="round", **look)


def _node(axes, event: StepEvent, i: int, k: int) -> None:
    _, token, p = event.top_tokens[i][k][0]
    anchor, lit = event.anchor[i], event.path[i] == k and not event.anchor[i]
    box = _box(_ANCHOR if anchor else _NODE, _PATH if lit else "#adb5bd", 2.2 if lit else 0.8)
    label = token if anchor else f"{token}\n{p:.2f}"
    _label(axes, i, _height(event, i, k), label, "white" if anchor else "black", bbox=box)


def _after(axes, event: StepEvent) -> None:
    """The tokens decided in this step (a node shows its best token, not the one that was drawn)."""
    below = -_tallest(event) / 2 - 0.25
    _label(axes, -1, below, "after", _EDGE)
    for i, text in enumerate(event.texts):
        if event.anchor[i] or event.fixed[i]:
            colour = _EDGE if event.anchor[i] else _INFILLED if event.infilled[i] else _DECIDED
            _label(axes, i, below, text, colour, weight="normal" if event.anchor[i] else "bold")
    for n, (name, values) in enumerate(_rows(event).items(), 1):
        _label(axes, -1, below - n * _LINE, name, _EDGE)
        for i, p in enumerate(values):
            if p is not None:
                _label(axes, i, below - n * _LINE, f"{p:.2f}", _DECIDED if event.fixed[i] else "#adb5bd")


def _rows(event: StepEvent) -> dict[str, list[float | None]]:
    """Probabilities of the drawn tokens; with token edges, given the left neighbour and without it."""
    given = {"given left": event.probability, "alone": event.alone}
    return given if event.has_edges else {"drawn": event.probability}


def _label(axes, x: float, y: float, text: str, colour: str, **look) -> None:
    """Tokens are shown literally: a dollar sign must not start a formula."""
    centred = {"ha": "center", "va": "center", "parse_math": False}
    axes.text(x, y, text, fontsize=9.5, color=colour, zorder=3, **centred, **look)


def _box(face: str, edge: str, width: float) -> dict:
    return {"boxstyle": "round,pad=0.3", "facecolor": face, "edgecolor": edge, "linewidth": width}

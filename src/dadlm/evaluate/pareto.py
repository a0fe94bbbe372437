"""The paper's figure: quality over tokens per forward pass, one panel for each block size.

For each model the configurations that no other one beats in both are its frontier. Its tail, drawn dashed,
lies beyond the last of them that keeps a tenth of the best quality. The operating regime of DA-DLM, shaded,
reaches from its first frontier point to the start of its tail.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dadlm.decode.picture import new_figure, save_figure
from dadlm.errors import DataError
from dadlm.evaluate.subject import NAMES
from dadlm.model.files import whole_file

Quality = Literal["mauve", "judge_perplexity"]
_AXIS = {"mauve": "MAUVE", "judge_perplexity": "judge perplexity (lower is better)"}
_COLOURS = {"bd3lm": "#1971c2", "dadlm": "#e8590c", "mdlm": "#2b8a3e"}
_GREY = "#495057"
_MARKERS = "os^Dv"
_TAIL = 0.1


class Point(NamedTuple):
    """One configuration of a model; quality is the value, or its inverse where less is better."""

    speed: float
    value: float
    low: float
    high: float
    infilled: bool
    quality: float


class Style(NamedTuple):
    """The family gives the colour; the marker tells models of one family and block size apart."""

    family: str
    marker: str


def draw_pareto(result: Mapping[str, Any], path: str | Path, quality: Quality | None = None) -> None:
    """Draw PATH.svg and PATH.png; quality is MAUVE where it was measured, else perplexity under the judge."""
    if quality is None:
        quality = "mauve" if any(row["mauve"] for row in result["rows"]) else "judge_perplexity"
    rows = [row for row in result["rows"] if row[quality] is not None]
    if not rows:
        raise DataError(f"no row has a {_AXIS[quality]}: there is nothing to draw")
    sizes = sorted({row["block_size"] or 0 for row in rows if row["family"] != "ar"}, reverse=True) or [0]
    styles = _styles(rows)
    figure = new_figure(1.3 + 2.9 * len(sizes), 3.6)
    panels = figure.subplots(1, len(sizes), squeeze=False, sharey=True)[0]
    for axes, size in zip(panels, sizes, strict=True):
        _panel(axes, [row for row in rows if (row["block_size"] or 0) == size], styles, quality)
        axes.set_title(f"block size {size}" if size else "no blocks", fontsize=10)
        for row in rows:
            if row["family"] == "ar":  # it writes one token a pass: a line to look up to
                axes.axhline(row[quality]["mean"], color=_GREY, ls=":", lw=1.2, zorder=1)
    panels[0].set_ylabel(_AXIS[quality])
    if quality == "mauve":
        panels[0].set_ylim(0, 1.03)
    else:
        from matplotlib.ticker import LogFormatter

        panels[0].set_yscale("log")
        panels[0].invert_yaxis()
        panels[0].yaxis.set_major_formatter(LogFormatter())  # plain numbers, and no more than fit
        panels[0].yaxis.set_minor_formatter(LogFormatter())
    figure.tight_layout()
    _legend(figure, styles, {row["family"] for row in rows})
    for ending in ("svg", "png"):
        with whole_file(Path(f"{path}.{ending}")) as handle:
            save_figure(figure, handle, ending, dpi=200)


def frontier(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats in both, from slow to fast; of equal ones the first."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (-point.speed, -point.quality)):
        if not best or point.quality > best[-1].quality:
            best.append(point)
    return best[::-1]


def tail_start(points: Sequence[Point]) -> int:
    """Index of the last frontier point that is still good; what follows it is the tail."""
    enough = _TAIL * max(point.quality for point in points)
    return max(index for index, point in enumerate(points) if point.quality >= enough)


def _named(style: Style, styles: Mapping[str, Style]) -> str:
    """The family, or the models' own names where a panel has several of it."""
    if [other.family for other in set(styles.values())].count(style.family) == 1:
        return NAMES[style.family]
    same = [model for model, other in styles.items() if other == style]
    return ", ".join(same).lstrip("_")  # with a leading underscore the entry would be hidden


def _styles(rows: Sequence[Mapping[str, Any]]) -> dict[str, Style]:
    """How each model is drawn; AR models are lines, not points."""
    styles: dict[str, Style] = {}
    seen: list[tuple[str, int | None]] = []
    for row in rows:
        if row["model"] not in styles and row["family"] != "ar":
            kind = (row["family"], row["block_size"])
            styles[row["model"]] = Style(row["family"], _MARKERS[seen.count(kind) % len(_MARKERS)])
            seen.append(kind)
    return styles


def _point(row: Mapping[str, Any], quality: Quality) -> Point:
    speed = row["raw_tpf"] if row["adjusted_tpf"] is None else row["adjusted_tpf"]
    mean, low, high = (row[quality][name] for name in ("mean", "low", "high"))
    return Point(speed, mean, low, high, row["infill"] is not None, mean if quality == "mauve" else 1 / mean)


def _panel(axes, rows: Sequence[Mapping[str, Any]], styles: Mapping[str, Style], quality: Quality) -> None:
    regimes = []
    for model, style in styles.items():
        if points := [_point(row, quality) for row in rows if row["model"] == model]:
            best = _draw_model(axes, points, style)
            regimes += [(best[0].speed, best[tail_start(best)].speed)] * (style.family == "dadlm")
    for regime in regimes[:1]:  # of several, the first
        axes.axvspan(*regime, color=_COLOURS["dadlm"], alpha=0.09, lw=0, zorder=0)
    adjusted = all(row["adjusted_tpf"] is not None for row in rows)
    raw = all(row["adjusted_tpf"] in (None, row["raw_tpf"]) for row in rows)
    axes.set_xlabel("adjusted TPF" if adjusted else "raw TPF" if raw else "TPF, adjusted if known")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_model(axes, points: Sequence[Point], style: Style) -> list[Point]:
    best, colour = frontier(points), _COLOURS[style.family]
    start = tail_start(best)
    for part, line in ((best[: start + 1], "-"), (best[start:], "--")):
        axes.plot([p.speed for p in part], [p.value for p in part], line, color=colour, lw=1.4, zorder=2)
    for point in points:
        how = {"color": colour, "alpha": 1.0 if point in best else 0.3}
        axes.plot([point.speed] * 2, [point.low, point.high], **how, lw=0.8, zorder=1)
        face = "white" if point.infilled else colour
        axes.plot(point.speed, point.value, style.marker, **how, mfc=face, ms=5, zorder=3)
    return best


def _legend(figure, styles: Mapping[str, Style], families: set[str]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries: list[Any] = [
        Line2D([], [], color=_COLOURS[style.family], marker=style.marker, ms=5, label=_named(style, styles))
        for style in dict.fromkeys(styles.values())
    ]
    if "ar" in families:
        entries.append(Line2D([], [], color=_GREY, ls=":", label="AR"))
    how = {"color": _GREY, "ms": 5, "marker": "o", "ls": ""}
    entries += [
        Line2D([], [], **how, mfc="white", label="with infilling"),
        Line2D([], [], **how, alpha=0.3, label="dominated"),
        Line2D([], [], color=_GREY, ls="--", label="tail"),
    ]
    if "dadlm" in families:
        entries.append(Patch(color=_COLOURS["dadlm"], alpha=0.15, lw=0, label="operating regime"))
    legend = figure.legend(
        handles=entries, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=4, frameon=False, fontsize=9
    )
    for text in legend.get_texts():
        text.set_parse_math(False)

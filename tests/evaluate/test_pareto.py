"""Frontiers by enumeration, the paper's own numbers as a figure, and figures of little data."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.decode.tiny import many

from dadlm.errors import DataError
from dadlm.evaluate.paper import AR_MAUVE, GENERATION
from dadlm.evaluate.pareto import Point, draw_pareto, frontier, tail_start

pytest.importorskip("matplotlib")


def point(speed: float, quality: float) -> Point:
    return Point(speed=speed, value=quality, low=quality, high=quality, infilled=False, quality=quality)


@many
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8))
def test_the_frontier_is_what_nothing_beats(pairs: list[tuple[int, int]]) -> None:
    """Against the definition, pair by pair."""
    beaten = {
        (x, y)
        for (x, y), (other_x, other_y) in product(pairs, pairs)
        if other_x >= x and other_y >= y and (other_x, other_y) != (x, y)
    }
    found = [(one.speed, one.quality) for one in frontier([point(x, y) for x, y in pairs])]
    assert found == sorted(set(pairs) - beaten)


def test_the_papers_frontier_and_tail() -> None:
    """Read off its table for block size 16: DA-DLM leaves T=4 alone below a tenth of 0.960."""
    points = [point(row.dadlm_tpf, row.dadlm_mauve) for row in GENERATION[16]]
    best = frontier(points)
    assert [one.quality for one in best] == [0.960, 0.846, 0.779, 0.567, 0.434, 0.367, 0.284, 0.152, 0.036]
    assert best[tail_start(best)].quality == 0.152
    assert tail_start([point(1, 0.5)]) == 0


def row(model: str, family: str, size: int | None, tpf: float, score: float, **more: Any) -> dict[str, Any]:
    return {
        "model": model,
        "family": family,
        "block_size": size,
        "infill": None,
        "raw_tpf": tpf,
        "adjusted_tpf": tpf if size else None,
        "mauve": {"mean": score, "low": max(0.0, score - 0.02), "high": min(1.0, score + 0.02)},
        "judge_perplexity": {"mean": 20 / score, "low": 19 / score, "high": 21 / score},
        **more,
    }


def paper() -> dict[str, Any]:
    rows = [row("AR", "ar", None, 1.0, AR_MAUVE)]
    for size, table in GENERATION.items():
        for one in table:
            infill = {"infill": one.infill and list(one.infill)}
            rows += [
                row(f"bd3lm-{size}", "bd3lm", size, one.bd3lm_tpf, one.bd3lm_mauve, **infill),
                row(f"dadlm-{size}", "dadlm", size, one.dadlm_tpf, one.dadlm_mauve, **infill),
            ]
    return {"rows": rows}


class Drawn:
    """The figure that was saved last, to look into."""

    figure: Any

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from matplotlib.figure import Figure

        save = Figure.savefig

        def keep(figure: Any, *args: Any, **options: Any) -> None:
            self.figure = figure
            save(figure, *args, **options)

        monkeypatch.setattr(Figure, "savefig", keep)

    @property
    def legend(self) -> list[str]:
        return [text.get_text() for text in self.figure.legends[0].get_texts()]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    return Drawn(monkeypatch)


def test_the_papers_figure(drawn: Drawn, tmp_path: Path) -> None:
    draw_pareto(paper(), tmp_path / "pareto")
    assert (tmp_path / "pareto.svg").read_text().startswith("<?xml")
    assert (tmp_path / "pareto.png").read_bytes().startswith(b"\x89PNG")
    panels = drawn.figure.axes
    assert [axes.get_title() for axes in panels] == ["block size 16", "block size 8", "block size 4"]
    assert {axes.get_xlabel() for axes in panels} == {"adjusted TPF"}
    assert drawn.legend == [
        *("BD3LM", "DA-DLM", "AR", "with infilling", "dominated", "tail", "operating regime")
    ]
    lines = panels[0].get_lines()
    solid, dashed = ([line for line in lines if line.get_linestyle() == style] for style in ("-", "--"))
    frontiers = [line for line in solid if len(line.get_xdata()) > 2]
    assert [line.get_xdata()[0] for line in frontiers] == [1.00, 0.93]
    assert [list(line.get_ydata()) for line in dashed] == [[0.105, 0.05, 0.039, 0.012], [0.152, 0.036]]
    (shade,) = panels[0].patches
    assert shade.get_x() == 0.93 and shade.get_x() + shade.get_width() == pytest.approx(2.63)
    markers = [line for line in lines if line.get_marker() == "o"]
    assert len(markers) == 30
    assert sum(line.get_markerfacecolor() == "white" for line in markers) == 2 * 9
    # Counted by hand in the table: 10 of BD3LM's 15 configurations and 9 of DA-DLM's are not dominated.
    assert sum(line.get_alpha() < 1 for line in markers) == 5 + 6


def test_lower_perplexity_is_better(drawn: Drawn, tmp_path: Path) -> None:
    draw_pareto(paper(), tmp_path / "ppl", "judge_perplexity")
    axes = drawn.figure.axes[0]
    assert axes.yaxis_inverted() and axes.get_yscale() == "log"
    frontiers = [
        line for line in axes.get_lines() if line.get_linestyle() == "-" and len(line.get_xdata()) > 2
    ]
    assert all(list(line.get_ydata()) == sorted(line.get_ydata()) for line in frontiers)


def test_models_of_one_family_are_told_apart(drawn: Drawn, tmp_path: Path) -> None:
    """Names stay as they are, also those that matplotlib would take for formulae or hide."""
    rows = [row(name, "bd3lm", 4, 1.0, 0.5) for name in ("_300K", "$x$ and $y")]
    rows += [row("mdlm", "mdlm", None, 1.0, 0.4), row("AR", "ar", None, 1.0, 0.9)]
    draw_pareto({"rows": rows}, tmp_path / "names")
    assert drawn.legend[:3] == ["300K", "$x$ and $y", "MDLM"]
    assert [axes.get_title() for axes in drawn.figure.axes] == ["block size 4", "no blocks"]
    markers = {line.get_marker() for line in drawn.figure.axes[0].get_lines()} - {"None"}
    assert len(markers) == 2


def test_nothing_to_draw(tmp_path: Path) -> None:
    empty = row("mine", "dadlm", 4, 1.0, 0.5, mauve=None, judge_perplexity=None)
    with pytest.raises(DataError, match="nothing to draw"):
        draw_pareto({"rows": [empty]}, tmp_path / "none")

"""The tour's curve: exact divergence from the truth while training, and the factorised models' bound."""

import json
from pathlib import Path

from dadlm.decode.picture import new_figure, save_figure


def read_curve(metrics: Path) -> list[tuple[int, float]]:
    """(step, divergence) pairs of a run."""
    entries = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    return [(entry["step"], entry["divergence"]) for entry in entries if "divergence" in entry]


def draw_curve(curves: dict[str, list[tuple[int, float]]], bound: float, start: float, file: Path) -> None:
    """One line per model from the same starting value, and the bound C."""
    figure = new_figure(7, 4.2)
    axes = figure.add_subplot()
    for (name, curve), colour in zip(curves.items(), ("#495057", "#f08c00"), strict=False):
        steps, values = zip((0, start), *curve, strict=True)
        axes.plot(steps, values, marker="o", ms=3.5, color=colour, label=name)
    axes.axhline(bound, color="#c92a2a", ls="--", lw=1.2)
    label, place = "C = (N−1)·log K: no factorised model gets below", axes.get_yaxis_transform()
    axes.text(1, bound - 0.08, label, va="top", ha="right", color="#c92a2a", transform=place)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("training steps after the common BD3LM")
    axes.set_ylabel("KL(truth ‖ model) of a masked block, nats")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    save_figure(figure, file)

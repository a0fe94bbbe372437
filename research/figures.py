"""The study's figures: validation while training, and quality over tokens per forward pass."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from dadlm.decode.picture import new_figure, save_figure
from dadlm.evaluate.pareto import draw_pareto
from dadlm.evaluate.subject import NAMES
from dadlm.evaluate.work import whole_file
from research.files import Facts, Results
from research.plan import WIKIPEDIA

_COLOURS = {"ar": "#495057", "mdlm": "#2b8a3e", "bd3lm": "#1971c2", "dadlm": "#e8590c"}
_LINES = {None: "-", 16: "-", 8: "--", 4: ":"}
QUALITIES = {"mauve": "study-mauve", "judge_perplexity": "study-perplexity"}


def draw_curves(results: Results, file: Path) -> None:
    """Nats per token over all steps on Wikipedia: colours tell families, line styles block sizes."""
    figure = new_figure(8, 4)
    whole, end = figure.subplots(1, 2, width_ratios=[1, 1])
    drawn = [run for run in results.of_role("base", "final").values() if run["text"] == WIKIPEDIA]
    for run in drawn:
        for axes in (whole, end):
            _draw_run(axes, run, (results.steps(run["after"]) or 0) if run["after"] else 0)
    last = [run["curve"][-1] for run in drawn if run["block_size"]]
    if last:  # in the whole the block-wise stages are a thin strip
        values = [entry.get("reconstruction", entry.get("loss")) for entry in last]
        steps = [results.steps(run["name"]) or 0 for run in drawn]
        end.set_xlim(16_000, max(steps) + 400)
        end.set_ylim(min(values) - 0.03, max(values) + 0.1)
    whole.set_ylabel("validation, nats per token")
    for axes, title in ((whole, "all stages"), (end, "block-wise stages")):
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("optimiser steps in all")
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = whole.get_legend_handles_labels()
    found = dict(zip(labels, handles, strict=True))
    figure.tight_layout()
    figure.legend(
        found.values(), found, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=4, frameon=False, fontsize=9
    )
    with whole_file(file) as handle:
        save_figure(figure, handle, "svg")


def _draw_run(axes, run: Facts, before: int) -> None:
    family, size = run["family"], run["block_size"]
    step = [before + entry["step"] for entry in run["curve"]]
    kinds = {"reconstruction": 1.0, "bound": 0.45} if family == "dadlm" else {"loss": 1.0}
    for kind, alpha in kinds.items():
        label = NAMES[family] + (f", N = {size}" if size else "") + (", bound" if kind == "bound" else "")
        values = [entry[kind] for entry in run["curve"]]
        how = {"color": _COLOURS[family], "ls": _LINES[size], "alpha": alpha, "lw": 1.4}
        axes.plot(step, values, label=label, marker="." if len(step) == 1 else None, **how)


def draw_texts(result: Facts, folder: Path) -> None:
    """The package's own figure, for MAUVE and the judge's perplexity, over raw and over adjusted speed."""
    raw = {**result, "rows": [{**row, "adjusted_tpf": None} for row in result["rows"]]}
    for quality, name in QUALITIES.items():
        if any(row[quality] for row in result["rows"]):
            for shown, end in ((raw, "-raw"), (result, "")):
                with TemporaryDirectory() as place:
                    draw_pareto(shown, Path(place) / "pareto", quality)  # type: ignore[arg-type]
                    shutil.copyfile(Path(place) / "pareto.svg", folder / f"{name}{end}.svg")

"""Tables of docs/results.md on likelihood and training, as Markdown, the paper's numbers beside ours.

A row that was not measured is left out; with no row a table is empty. Knows the results, not the page.
"""

from collections.abc import Iterable

from study_results import NEWS, Facts, Results, matched_pairs, pairs_of, prefix_of, rank, size_of
from tables import table

from dadlm.evaluate import paper
from dadlm.evaluate.report.document import NONE, between, number
from dadlm.evaluate.subject import NAMES

PROBED = (50, 100, 200, 300)
"""Steps at which probes are compared."""


def some(head: list[str], rows: Iterable[list[str]]) -> str:
    """A table, or nothing where it has no rows."""
    rows = list(rows)
    return table(head, rows) if rows else ""


def told(interval: Facts | None, digits: int = 3, scale: float = 1) -> str:
    if interval is None:
        return NONE
    return f"{number(interval['mean'] * scale, digits)} {between(interval, digits, scale)}"


def reconstruction_table(results: Results) -> str:
    """The paper's Table 1: nats per token of a masked block."""
    head = ["", "N", "Wikipedia, short", "Wikipedia, long", "Wikinews"]
    rows = []
    for family, N in paper.RECONSTRUCTION:
        name = family if N is None else f"{family}-{N}"
        ours = [results.reconstruction.get(one) for one in (name, f"{name}-long", f"{NEWS}{name}")]
        if any(ours):
            theirs = paper.RECONSTRUCTION[family, N]
            cells = [told(one and one["interval"]) for one in ours]
            beside = [number(theirs[text]) for text in ("OpenWebText", "LM1B")]
            rows.append([NAMES[family], str(N or NONE), *cells, *beside])
    return some([*head, "paper: OpenWebText", "paper: LM1B"], rows)


def differences_table(results: Results, prefix: str = "") -> str:
    """Row by row on the same masks; negative: DA-DLM is better."""
    column = "LM1B" if prefix else "OpenWebText"
    rows = []
    for pair in (pair for pair in pairs_of(prefix) if pair in results.pairs):
        found = results.pairs[pair]
        one, other = (paper.RECONSTRUCTION[family, size_of(pair[0])][column] for family in ("dadlm", "bd3lm"))
        rows.append(
            [
                " − ".join(f"`{name}`" for name in pair),
                told(found["difference"]),
                told(found.get("bound_difference"), 4),
                number(found["gap"], 3),
                number(one - other) if pair not in matched_pairs() else NONE,
            ]
        )
    return some(["", "reconstruction", "bound", "gap", f"paper, {column}"], rows)


def perplexity_table(results: Results, prefix: str = "") -> str:
    """AR's is exact, all others are bounds."""
    order = sorted((name for name in results.perplexity if prefix_of(name) == prefix), key=rank)
    return some(
        ["", "steps in all", "nats per token", "perplexity", "bits per byte", ""],
        (
            [
                f"`{name}`",
                number(results.steps(name), 0),
                told(found["nll"]),
                told(found["perplexity"], 1),
                told(found["bits_per_byte"]),
                "bound" if found["is_bound"] else "exact",
            ]
            for name, found in ((name, results.perplexity[name]) for name in order)
        ),
    )


def training_table(results: Results) -> str:
    """Every run but probes and ablations: how long, and the last validation of its averaged weights."""
    names = [name for name in results.curves if not is_probe(name) and not is_ablation(name)]
    rows = []
    for name in sorted(names, key=lambda name: (prefix_of(name), results.steps(name) or 0, name)):
        run = results.curves[name]
        last = run["curve"][-1]
        value = last.get("reconstruction", last.get("loss"))
        rows.append(
            [
                f"`{name}`",
                f"`{run['after']}`" if run["after"] else NONE,
                number(run["steps"], 0),
                number(results.steps(name), 0),
                number(value, 3),
                number(last.get("bound"), 3),
                number(last.get("gap"), 3),
            ]
        )
    return some(["", "after", "steps", "steps in all", "loss or reconstruction", "bound", "gap"], rows)


def is_probe(name: str) -> bool:
    return name.startswith("probe-")


def is_ablation(name: str) -> bool:
    return name.startswith("dadlm-16-") and name.removeprefix("dadlm-16-") not in ("long",)


def ablation_table(results: Results, changes: dict[str, str]) -> str:
    """DA-DLM, N = 16, short; a setting changed at a time."""
    names = ["bd3lm-16", "dadlm-16", *(name for name in results.curves if is_ablation(name))]
    rows = []
    for name in (name for name in names if name in results.curves):
        run = results.curves[name]
        last = run["curve"][-1]
        value = last.get("reconstruction", last.get("loss"))
        change = changes.get(name, "") if is_ablation(name) else "as they are" if "dadlm" in name else ""
        numbers = [number(one, 3) for one in (value, last.get("bound"), last.get("gap"))]
        rows.append([f"`{name}`", change, *numbers])
    whole = any(is_ablation(name) for name in results.curves)
    return some(["", "changed", "reconstruction", "bound", "gap"], rows if whole else [])


def probe_table(results: Results, changes: dict[str, str]) -> str:
    """How fast the candidates part from one another: the gap on the way."""
    rows = []
    for name in (name for name in results.curves if is_probe(name)):
        curve = {entry["step"]: entry for entry in results.curves[name]["curve"]}
        gaps = [number((curve.get(step) or {}).get("gap"), 3) for step in PROBED]
        last = number(results.curves[name]["curve"][-1].get("reconstruction"), 3)
        rows.append([f"`{name}`", changes.get(name, "") or "as they are", *gaps, last])
    return some(["", "changed", *(f"gap at {step}" for step in PROBED), "reconstruction"], rows)

"""Tables of docs/results.md on likelihood and training, as Markdown, the paper's numbers beside ours.

A row that was not measured is left out; with no row a table is empty. Knows the results, not the page.
"""

from collections.abc import Iterable

from dadlm.evaluate import paper
from dadlm.evaluate.report.document import NONE, between, number
from dadlm.evaluate.subject import NAMES
from research.files import Facts, Results, rank
from research.plan import WIKINEWS, WIKIPEDIA, pairs, plan

PROBED = (50, 100, 200, 300)
"""Steps at which probes are compared."""


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    """Markdown: the first column to the left, the others to the right; nothing where there are no rows."""
    line = ["---"] + ["---:"] * (len(head) - 1)
    lines = ["| " + " | ".join(cells) + " |\n" for cells in (head, line, *rows)]
    return "".join(lines) if len(lines) > 2 else ""


def with_interval(interval: Facts | None, digits: int = 3, scale: float = 1) -> str:
    if interval is None:
        return NONE
    return f"{number(interval['mean'] * scale, digits)} {between(interval, digits, scale)}"


def reconstruction_table(results: Results) -> str:
    """The paper's Table 1: nats per token of a masked block."""
    columns = [(WIKIPEDIA, "short"), (WIKIPEDIA, "long"), (WIKINEWS, "short")]
    head = ["", "N", "Wikipedia, short", "Wikipedia, long", "Wikinews"]
    found = {}
    for name, measured in results.reconstruction.items():
        run = results.facts(name)
        if run["role"] == "final" and not run["matched"]:
            found[tuple(run[key] for key in ("family", "block_size", "text", "length"))] = measured
    rows = []
    for family, N in paper.RECONSTRUCTION:
        ours = [found.get((family, N, *column)) for column in columns]
        if any(ours):
            theirs = paper.RECONSTRUCTION[family, N]
            cells = [with_interval(one and one["interval"]) for one in ours]
            beside = [number(theirs[text]) for text in ("OpenWebText", "LM1B")]
            rows.append([NAMES[family], str(N or NONE), *cells, *beside])
    return table([*head, "paper: OpenWebText", "paper: LM1B"], rows)


def differences_table(results: Results, text: str = WIKIPEDIA) -> str:
    """Row by row on the same masks; negative: DA-DLM is better."""
    column = "LM1B" if text == WIKINEWS else "OpenWebText"
    rows, runs = [], plan()
    for pair in (pair for pair in pairs(text) if pair in results.pairs):
        found, N = results.pairs[pair], runs[pair[0]].block_size
        one, other = (paper.RECONSTRUCTION[family, N][column] for family in ("dadlm", "bd3lm"))
        rows.append(
            [
                " − ".join(f"`{name}`" for name in pair),
                with_interval(found["difference"]),
                with_interval(found.get("bound_difference"), 4),
                number(found["gap"], 3),
                NONE if runs[pair[1]].matched else number(one - other),
            ]
        )
    return table(["", "reconstruction", "bound", "gap", f"paper, {column}"], rows)


def perplexity_table(results: Results, text: str = WIKIPEDIA) -> str:
    """AR's is exact, all others are bounds."""
    names = (name for name in results.perplexity if results.facts(name)["text"] == text)
    order = sorted(names, key=lambda name: rank(results.facts(name), name))
    return table(
        ["", "steps in all", "nats per token", "perplexity", "bits per byte", ""],
        (
            [
                f"`{name}`",
                number(results.steps(name), 0),
                with_interval(found["nll"]),
                with_interval(found["perplexity"], 1),
                with_interval(found["bits_per_byte"]),
                "bound" if found["is_bound"] else "exact",
            ]
            for name, found in ((name, results.perplexity[name]) for name in order)
        ),
    )


def training_table(results: Results) -> str:
    """Every run but probes and ablations: how long, and the last validation of its averaged weights."""
    runs = results.of_role("base", "final")
    rows = []
    for name in sorted(
        runs, key=lambda name: (runs[name]["text"] != WIKIPEDIA, results.steps(name) or 0, name)
    ):
        run = runs[name]
        last = run["curve"][-1]
        rows.append(
            [
                f"`{name}`",
                f"`{run['after']}`" if run["after"] else NONE,
                number(run["steps"], 0),
                number(results.steps(name), 0),
                *_validated(last),
            ]
        )
    return table(["", "after", "steps", "steps in all", "loss or reconstruction", "bound", "gap"], rows)


def _validated(last: Facts) -> list[str]:
    """Reconstruction (or loss), bound and gap of the last validation."""
    values = (last.get("reconstruction", last.get("loss")), last.get("bound"), last.get("gap"))
    return [number(value, 3) for value in values]


def ablation_table(results: Results) -> str:
    """DA-DLM, N = 16, short; a setting changed at a time."""
    ablations = results.of_role("ablation")
    same = ("final", WIKIPEDIA, 16, "short", False)
    base = [
        name
        for name, run in results.runs.items()
        if tuple(run[key] for key in ("role", "text", "block_size", "length", "matched")) == same
    ]
    rows = []
    for name in (*base, *ablations):
        run = results.runs[name]
        change = _changes(run) if name in ablations else "as they are" if run["family"] == "dadlm" else ""
        rows.append([f"`{name}`", change, *_validated(run["curve"][-1])])
    return table(["", "changed", "reconstruction", "bound", "gap"], rows if ablations else [])


def probe_table(results: Results) -> str:
    """How fast the candidates part from one another: the gap on the way."""
    rows = []
    for name, run in results.of_role("probe").items():
        curve = {entry["step"]: entry for entry in run["curve"]}
        gaps = [number((curve.get(step) or {}).get("gap"), 3) for step in PROBED]
        last = number(run["curve"][-1].get("reconstruction"), 3)
        rows.append([f"`{name}`", _changes(run) or "as they are", *gaps, last])
    return table(["", "changed", *(f"gap at {step}" for step in PROBED), "reconstruction"], rows)


def _changes(run: Facts) -> str:
    return ", ".join(f"{key} {value}" for key, value in run["changes"].items())

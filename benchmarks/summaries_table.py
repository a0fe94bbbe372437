"""What `summaries.py` measured → numbers of each set and of all pairs together → tables and claims."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from dadlm import DecodeSettings
from dadlm.evaluate import bootstrap
from dadlm.evaluate.paper import SUMMARISATION, SUMMARY_INFILL
from dadlm.evaluate.subject import NAMES
from dadlm.evaluate.summarisation import summary_settings

SETS = {"xsum": "XSum", "cnndm": "CNN/DailyMail", "wikinews_sum": "Wikinews"}
PAPER = {"xsum": "XSum", "cnndm": "CNN/DailyMail"}
FAMILIES = ("ar", "bd3lm", "dadlm")
HELD_OUT, ALL = "held-out", "all"
THRESHOLDS = (0.9, 0.8, 0.7, 0.6, 0.5)
FAST = 0.5  # the highest of them at which DA-DLM writes 1.5 tokens a pass of the held-out pairs
SCORES = ("rouge1", "rouge2", "rougeL", "average")

Numbers = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class System:
    """A model and how it is decoded."""

    family: str
    path: Literal["viterbi", "lookahead"] = "lookahead"
    threshold: float = 0.9
    infill: bool = False

    @property
    def settings(self) -> DecodeSettings:
        infill = SUMMARY_INFILL if self.infill else None
        return summary_settings(self.family, path=self.path, threshold=self.threshold, infill=infill)

    @property
    def label(self) -> str:
        """Its folder, and its name among the numbers."""
        parts = [self.family]
        parts += ["viterbi"] if self.path == "viterbi" else []
        parts += [f"{self.threshold:g}"] if self.threshold != 0.9 else []
        return "-".join([*parts, "infill"] if self.infill else parts)

    @property
    def shown(self) -> str:
        path = ", Viterbi" if self.path == "viterbi" else ""
        threshold = f", threshold {self.threshold:g}" if self.threshold != 0.9 else ""
        return NAMES[self.family] + path + threshold + (" + infilling" if self.infill else "")


def _with_infilling(**how: Any) -> Iterator[System]:
    for infill in (False, True):
        yield System(**how, infill=infill)


SYSTEMS = {
    system.label: system
    for system in (
        System(family="ar"),
        *_with_infilling(family="bd3lm"),
        *_with_infilling(family="dadlm"),
        *_with_infilling(family="dadlm", path="viterbi"),
        *_with_infilling(family="bd3lm", threshold=FAST),
        *_with_infilling(family="dadlm", threshold=FAST),
    )
}
SWEPT = [
    system
    for family in ("bd3lm", "dadlm")
    for threshold in THRESHOLDS
    for system in _with_infilling(family=family, threshold=threshold)
]
DIFFERENCES = (
    ("dadlm", "bd3lm"),
    ("dadlm", "ar"),
    ("bd3lm", "ar"),
    ("dadlm-infill", "dadlm"),
    ("bd3lm-infill", "bd3lm"),
    ("dadlm-viterbi", "dadlm"),
    (f"dadlm-{FAST}", f"bd3lm-{FAST}"),
    (f"dadlm-{FAST}", "ar"),
    (f"dadlm-{FAST}-infill", f"dadlm-{FAST}"),
)


def compare(folder: Path) -> Numbers:
    """For each set and for all pairs together: scores, tokens per pass, paired differences; the times; and
    thresholds on held-out pairs. `folder` holds LABEL/SET, which `summarisation` wrote, and LABEL/times.json.
    """
    pieces = {label: {name: _pieces(folder / label / name) for name in SETS} for label in SYSTEMS}
    for found in pieces.values():
        found[ALL] = [piece for name in SETS for piece in found[name]]
    numbers: Numbers = {
        name: _set({label: pieces[label][name] for label in SYSTEMS}) for name in (*SETS, ALL)
    }
    files = {label: folder / label / "times.json" for label in SYSTEMS}
    numbers["times"] = {label: json.loads(file.read_text()) for label, file in files.items() if file.exists()}
    numbers["models"] = {family: _model(folder / family / "xsum") for family in FAMILIES}
    numbers[HELD_OUT] = _held_out(folder)
    return numbers | {"claims": claims(numbers)}


def _pieces(folder: Path) -> list[dict[str, Any]]:
    """One for each pair, in the order of the file."""
    lines = (folder / "summarisation.pieces.jsonl").read_text(encoding="utf-8").splitlines()[1:]
    found = dict(json.loads(line) for line in lines)
    return [found[str(row)] for row in range(len(found))]


def _model(folder: Path) -> Numbers:
    return json.loads((folder / "summarisation.json").read_text())["model"]


def _set(pieces: dict[str, list[dict[str, Any]]]) -> Numbers:
    average = {label: _scores(some, "rouge")[:, 3] for label, some in pieces.items()}
    return {
        "pairs": len(average["ar"]),
        "lead": _intervals(_scores(pieces["ar"], "lead")),
        "systems": {
            label: _intervals(_scores(some, "rouge")) | _counts(some) for label, some in pieces.items()
        },
        "differences": {
            f"{one} - {other}": asdict(bootstrap(average[one] - average[other])) for one, other in DIFFERENCES
        },
    }


def _held_out(folder: Path) -> Numbers:
    rows = {system.label: _pieces(folder / system.label / HELD_OUT) for system in SWEPT}
    return {
        "pairs": len(rows["dadlm"]),
        "systems": {
            label: {"average": asdict(bootstrap(_scores(some, "rouge")[:, 3]))} | _counts(some)
            for label, some in rows.items()
        },
    }


def _scores(pieces: list[dict[str, Any]], which: str) -> torch.Tensor:
    """[pairs, 4]: the three scores and their average."""
    three = torch.tensor([piece[which] for piece in pieces], dtype=torch.float64)
    return torch.cat([three, three.mean(1, keepdim=True)], 1)


def _intervals(scores: torch.Tensor) -> dict[str, dict[str, float]]:
    return {name: asdict(bootstrap(scores[:, place])) for place, name in enumerate(SCORES)}


def _counts(pieces: list[dict[str, Any]]) -> Numbers:
    """Tokens are counted up to and including end-of-text, passes until it stands and all before it."""
    tokens, passes = (
        torch.tensor([piece[name] for piece in pieces]) for name in ("tokens", "forward_passes")
    )
    return {
        "tpf": asdict(bootstrap(tokens.double(), per=passes.double())),
        "tokens": int(tokens.sum()),
        "forward_passes": int(passes.sum()),
        "empty": sum(not piece["text"].strip() for piece in pieces),
    }


def claims(numbers: Numbers) -> list[dict[str, Any]]:
    """What was to be shown over all pairs, and whether it holds, at the paper's threshold and a low one."""
    names = ("claim", "must", "measured", "holds")
    low = f"-{FAST}"
    return [dict(zip(names, row, strict=True)) for end in ("", low) for row in _claims(numbers, end)]


def _claims(numbers: Numbers, end: str) -> Iterator[tuple[str, str, str, bool]]:
    ours, theirs = f"dadlm{end}", f"bd3lm{end}"
    pooled, times, told = numbers[ALL], numbers["times"], SYSTEMS[ours].shown
    to_bd3lm, to_ar = (pooled["differences"][f"{ours} - {other}"] for other in (theirs, "ar"))
    cost = pooled["differences"][f"{ours}-infill - {ours}"]["mean"]
    tpf = {label: pooled["systems"][label]["tpf"]["mean"] for label in SYSTEMS}
    gain = tpf[f"{ours}-infill"] / tpf[ours] - 1
    yield f"{told} - BD3LM, ROUGE", "≥ 0", _signed(to_bd3lm), to_bd3lm["mean"] >= 0
    yield "its interval", "above -1.0", _signed(to_bd3lm), to_bd3lm["low"] > -1.0
    yield f"{told} - AR, ROUGE", "≥ -0.5", _signed(to_ar), to_ar["mean"] >= -0.5
    yield f"{told}, TPF", "≥ 1.5", f"{tpf[ours]:.2f}", tpf[ours] >= 1.5
    both = f"{tpf[ours]:.2f}, {tpf[theirs]:.2f}"
    yield f"{told}, TPF", "above BD3LM's", both, tpf[ours] > tpf[theirs]
    yield f"{told}, infilling: TPF", "≥ +25%", f"{gain:+.0%}", gain >= 0.25
    yield f"{told}, infilling: ROUGE lost", "< 0.3", f"{-cost:+.2f}", -cost < 0.3
    for kind in ("alone", "served") if ours in times else ():
        own, other = times[ours][kind], times["ar"][kind]
        yield f"{told}, ms per summary, {kind}", "below AR's", f"{own:.0f}, {other:.0f}", own < other


def tables(numbers: Numbers) -> str:
    """Markdown: a table for each set and for all pairs, the paper's rows beside; thresholds; the claims."""
    parts = [_table(name, SETS.get(name, "All sets"), numbers) for name in (*SETS, ALL)]
    parts += [_thresholds(numbers[HELD_OUT])]
    rows = [
        [row["claim"], row["must"], row["measured"], "yes" if row["holds"] else "**no**"]
        for row in numbers["claims"]
    ]
    parts.append("\n".join(_lines(["over all pairs", "must", "measured", "holds"], rows)))
    timed = numbers["times"]["ar"]
    parts.append(
        f"Milliseconds of a single summary on {timed['machine']}, the mean of {timed['pairs']} pairs: by a "
        "call of `generate` of its own, which on CUDA captures its graphs anew, and by a server that has "
        "them. The splits are our own: these numbers cannot be set beside published ones. The paper's rows "
        "are of models of another size, trained on other text, and decoded by Viterbi."
    )
    return "\n\n".join(parts) + "\n"


def _table(name: str, title: str, numbers: Numbers) -> str:
    found, lead = numbers[name], numbers[name]["lead"]
    has_times = name == ALL
    head = ["", "R-1", "R-2", "R-L", "average", "TPF"]
    head += ["ms alone", "ms served"] if has_times else ["the paper: average, TPF"] if name in PAPER else []
    rows = [["first sentence", *(_cell(lead[score]) for score in SCORES)]]
    for label, system in SYSTEMS.items():
        measured = found["systems"][label]
        row = [system.shown, *(_cell(measured[score]) for score in (*SCORES, "tpf"))]
        if has_times:
            times = numbers["times"].get(label, {})
            row += [f"{times[kind]:.0f}" if times else "–" for kind in ("alone", "served")]
        elif name in PAPER and system.threshold == 0.9:
            theirs = SUMMARISATION[PAPER[name]][system.family, system.infill]
            row.append(f"{theirs.average:.2f}, {theirs.tpf:.2f}")
        rows.append(row)
    lines = [f"### {title}, {found['pairs']} pairs", "", *_lines(head, rows)]
    lines += ["", "Paired differences in average ROUGE, 95% intervals: " + _told(found["differences"])]
    if max(one["average"]["mean"] for one in found["systems"].values()) < lead["average"]["mean"] + 1:
        lines += ["", "No model is clearly above the first sentence: at this size none can summarise."]
    return "\n".join(lines)


def _thresholds(found: Numbers) -> str:
    head = [
        "threshold",
        *(f"{NAMES[family]}{more}" for family in ("bd3lm", "dadlm") for more in ("", " + infilling")),
    ]
    rows = []
    for threshold in THRESHOLDS:
        measured = [found["systems"][one.label] for one in SWEPT if one.threshold == threshold]
        rows.append(
            [f"{threshold:g}", *(f"{_cell(one['average'])}, {one['tpf']['mean']:.2f}" for one in measured)]
        )
    return "\n".join(
        [f"### Thresholds, {found['pairs']} held-out pairs: average ROUGE, TPF", "", *_lines(head, rows)]
    )


def _told(differences: dict[str, dict[str, float]]) -> str:
    pairs = ((pair.split(" - "), value) for pair, value in differences.items())
    return (
        "; ".join(
            f"{SYSTEMS[one].shown} - {SYSTEMS[other].shown} {_signed(value)}" for (one, other), value in pairs
        )
        + "."
    )


def _lines(head: list[str], rows: list[list[str]]) -> list[str]:
    rows = [row + [""] * (len(head) - len(row)) for row in rows]
    return [_line(head), "|---" + "|---:" * (len(head) - 1) + "|", *map(_line, rows)]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: dict[str, float]) -> str:
    return "{mean:.2f} [{low:.2f}, {high:.2f}]".format(**value)


def _signed(value: dict[str, float]) -> str:
    return "{mean:+.2f} [{low:+.2f}, {high:+.2f}]".format(**value)

"""What `summaries.py` measured → numbers of each set and of all pairs together → tables and claims."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dadlm.evaluate import bootstrap
from dadlm.evaluate.paper import SUMMARISATION
from dadlm.evaluate.subject import NAMES

SETS = {"xsum": "XSum", "cnndm": "CNN/DailyMail", "wikinews_sum": "Wikinews"}
PAPER = {"xsum": "XSum", "cnndm": "CNN/DailyMail"}
FAMILIES = ("ar", "bd3lm", "dadlm")
SYSTEMS = [
    (family, infill) for family in FAMILIES for infill in (False, True) if family != "ar" or not infill
]
SCORES = ("rouge1", "rouge2", "rougeL", "average")
DIFFERENCES = (
    ("dadlm", "bd3lm"),
    ("dadlm", "ar"),
    ("bd3lm", "ar"),
    ("dadlm-infill", "bd3lm-infill"),
    ("dadlm-infill", "dadlm"),
    ("bd3lm-infill", "bd3lm"),
)
ALL = "all"

Numbers = dict[str, Any]


def label(family: str, infill: bool) -> str:
    return family + ("-infill" if infill else "")


LABELS = [label(*system) for system in SYSTEMS]


def compare(results: dict[str, dict[str, Any]], folder: Path) -> Numbers:
    """For each set and for all pairs together: scores, tokens per pass, paired differences; and the times."""
    pieces = {system: {name: _pieces(folder / system / name) for name in SETS} for system in LABELS}
    for found in pieces.values():
        found[ALL] = [piece for name in SETS for piece in found[name]]
    numbers: Numbers = {
        name: _set({system: pieces[system][name] for system in LABELS}) for name in (*SETS, ALL)
    }
    models = {system: results[system]["xsum"]["model"] for system in LABELS}
    numbers |= {"times": {system: results[system]["times"] for system in LABELS}, "models": models}
    return numbers | {"claims": claims(numbers)}


def _pieces(folder: Path) -> list[dict[str, Any]]:
    """One for each pair, in the order of the file."""
    lines = (folder / "summarisation.pieces.jsonl").read_text(encoding="utf-8").splitlines()[1:]
    found = dict(json.loads(line) for line in lines)
    return [found[str(row)] for row in range(len(found))]


def _set(pieces: dict[str, list[dict[str, Any]]]) -> Numbers:
    average = {system: _scores(some, "rouge")[:, 3] for system, some in pieces.items()}
    return {
        "pairs": len(average["ar"]),
        "lead": _intervals(_scores(pieces["ar"], "lead")),
        "systems": {
            system: _intervals(_scores(some, "rouge")) | _counts(some) for system, some in pieces.items()
        },
        "differences": {
            f"{one} - {other}": asdict(bootstrap(average[one] - average[other])) for one, other in DIFFERENCES
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
    """What was to be shown, over all pairs, and whether it holds."""
    pooled, times = numbers[ALL], numbers["times"]
    to_bd3lm, to_ar = (pooled["differences"][f"dadlm - {other}"] for other in ("bd3lm", "ar"))
    cost = pooled["differences"]["dadlm-infill - dadlm"]["mean"]
    tpf = {system: pooled["systems"][system]["tpf"]["mean"] for system in LABELS}
    gain = tpf["dadlm-infill"] / tpf["dadlm"] - 1
    rows = [
        ("ROUGE, DA-DLM - BD3LM", "≥ 0", _signed(to_bd3lm), to_bd3lm["mean"] >= 0),
        ("its interval", "above -1.0", _signed(to_bd3lm), to_bd3lm["low"] > -1.0),
        ("ROUGE, DA-DLM - AR", "≥ -0.5", _signed(to_ar), to_ar["mean"] >= -0.5),
        ("TPF of DA-DLM", "≥ 1.5", f"{tpf['dadlm']:.2f}", tpf["dadlm"] >= 1.5),
        (
            "TPF of DA-DLM",
            "above BD3LM's",
            f"{tpf['dadlm']:.2f}, {tpf['bd3lm']:.2f}",
            tpf["dadlm"] > tpf["bd3lm"],
        ),
        ("infilling: TPF", "≥ +25%", f"{gain:+.0%}", gain >= 0.25),
        ("infilling: ROUGE lost", "< 0.3", f"{-cost:+.2f}", -cost < 0.3),
    ]
    for kind in ("alone", "served"):
        own, other = times["dadlm"][kind], times["ar"][kind]
        rows.append((f"ms per summary, {kind}", "below AR's", f"{own:.0f}, {other:.0f}", own < other))
    names = ("claim", "must", "measured", "holds")
    return [dict(zip(names, row, strict=True)) for row in rows]


def tables(numbers: Numbers) -> str:
    """Markdown: a table for each set and one for all pairs, the paper's rows beside, then the claims."""
    parts = [_table(name, SETS.get(name, "All sets"), numbers) for name in (*SETS, ALL)]
    rows = [
        f"| {row['claim']} | {row['must']} | {row['measured']} | {'yes' if row['holds'] else '**no**'} |"
        for row in numbers["claims"]
    ]
    parts.append("\n".join(["| over all pairs | must | measured | holds |", "|---|---|---|---|", *rows]))
    machine = numbers["times"]["ar"]["machine"]
    parts.append(
        f"Milliseconds of a single summary on {machine}: by a call of `generate` of its own, which on CUDA "
        "captures its graphs anew, and by a server that has them. The splits are our own: these numbers "
        "cannot be set beside published ones. The paper's rows are of models of another size, trained on "
        "other text."
    )
    return "\n\n".join(parts) + "\n"


def _table(name: str, title: str, numbers: Numbers) -> str:
    found, lead = numbers[name], numbers[name]["lead"]
    has_times = name == ALL
    head = ["", "R-1", "R-2", "R-L", "average", "TPF"]
    head += ["ms alone", "ms served"] if has_times else ["the paper: average, TPF"] if name in PAPER else []
    rows = [["first sentence", *(_cell(lead[score]) for score in SCORES)]]
    for family, infill in SYSTEMS:
        system = found["systems"][label(family, infill)]
        row = [
            _shown(label(family, infill)),
            *(_cell(system[score]) for score in SCORES),
            _cell(system["tpf"]),
        ]
        if has_times:
            row += [f"{numbers['times'][label(family, infill)][kind]:.0f}" for kind in ("alone", "served")]
        elif name in PAPER:
            theirs = SUMMARISATION[PAPER[name]][family, infill]
            row.append(f"{theirs.average:.2f}, {theirs.tpf:.2f}")
        rows.append(row)
    lines = [
        f"### {title}, {found['pairs']} pairs",
        "",
        _line(head),
        "|---" + "|---:" * (len(head) - 1) + "|",
    ]
    lines += [_line(row + [""] * (len(head) - len(row))) for row in rows]
    lines += ["", "Paired differences in average ROUGE, 95% intervals: " + _told(found["differences"])]
    if max(found["systems"][system]["average"]["mean"] for system in LABELS) < lead["average"]["mean"] + 1:
        lines += ["", "No model is clearly above the first sentence: at this size none can summarise."]
    return "\n".join(lines)


def _told(differences: dict[str, dict[str, float]]) -> str:
    pairs = ((pair.split(" - "), value) for pair, value in differences.items())
    return (
        "; ".join(f"{_shown(one)} - {_shown(other)} {_signed(value)}" for (one, other), value in pairs) + "."
    )


def _shown(system: str) -> str:
    family, _, infill = system.partition("-")
    return NAMES[family] + (" + infilling" if infill else "")


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: dict[str, float]) -> str:
    return "{mean:.2f} [{low:.2f}, {high:.2f}]".format(**value)


def _signed(value: dict[str, float]) -> str:
    return "{mean:+.2f} [{low:+.2f}, {high:+.2f}]".format(**value)

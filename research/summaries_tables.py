"""What `research.summaries` measured → numbers of each set and of all pairs together → tables and claims.

    python -m research.summaries_tables runs/summaries/evaluation/dadlm runs/dropout/evaluation/ar

prints the paired difference of two systems, also of different runs.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dadlm import DecodeSettings
from dadlm.evaluate import bootstrap
from dadlm.evaluate.paper import SUMMARISATION, SUMMARY_INFILL
from dadlm.evaluate.subject import NAMES
from dadlm.evaluate.summarisation import summary_settings
from research.tables import table, with_interval

SETS = {"xsum": "XSum", "cnndm": "CNN/DailyMail", "wikinews_sum": "Wikinews"}
PAPER = {"xsum": "XSum", "cnndm": "CNN/DailyMail"}
FAMILIES = ("ar", "bd3lm", "dadlm")
HELD_OUT, ALL = "held-out", "all"
RECIPE = "recipe.json"
THRESHOLDS = (0.9, 0.8, 0.7, 0.6, 0.5)
FAST = 1.5
"""Tokens per pass that the fast way to decode has."""
GAIN = 0.25
"""Share of tokens per pass that infilling is to gain."""
INFILLS = (SUMMARY_INFILL, (4, 0.25), (8, 0.25))
"""The paper's k and r, and such as fill longer gaps sooner."""
SCORES = ("rouge1", "rouge2", "rougeL", "average")

Numbers = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class System:
    """A model and how it is decoded."""

    family: str
    paper: bool = False
    threshold: float = 0.9
    infill: tuple[int, float] | None = None

    @property
    def settings(self) -> DecodeSettings:
        return summary_settings(self.family, paper=self.paper, threshold=self.threshold, infill=self.infill)

    @property
    def label(self) -> str:
        """Its folder, and its name among the numbers."""
        parts = [self.family]
        parts += ["paper"] if self.paper else []
        parts += [f"{self.threshold:g}"] if self.threshold != 0.9 else []
        parts += ["infill"] if self.infill else []
        return "-".join([*parts, *self._filled])

    @property
    def shown(self) -> str:
        paper = ", as in the paper" if self.paper else ""
        threshold = f", threshold {self.threshold:g}" if self.threshold != 0.9 else ""
        infill = " ".join([" + infilling", *self._filled]) if self.infill else ""
        return NAMES[self.family] + paper + threshold + infill

    @property
    def _filled(self) -> list[str]:
        """k and r, if they are not the paper's."""
        return [] if self.infill in (None, SUMMARY_INFILL) else [f"{number:g}" for number in self.infill]

    @property
    def plain(self) -> "System":
        return replace(self, infill=None)

    @property
    def infilling(self) -> "System":
        return replace(self, infill=SUMMARY_INFILL)


SWEPT = [
    System(family=family, threshold=threshold, infill=infill)
    for family in ("bd3lm", "dadlm")
    for threshold in THRESHOLDS
    for infill in (None, *INFILLS)
]
AS_IN_PAPER = [
    System(family=family, paper=True, infill=infill)
    for family in ("bd3lm", "dadlm")
    for infill in (None, SUMMARY_INFILL)
]
SYSTEMS = {system.label: system for system in (System(family="ar"), *AS_IN_PAPER, *SWEPT)}


@dataclass(frozen=True)
class Chosen:
    """What the held-out pairs say of thresholds and infilling."""

    best: dict[str, System]
    """Of each family: where ROUGE is highest."""
    filled: System | None
    """DA-DLM at the threshold that is best without infilling: where that gains enough, and ROUGE is highest
    then. None: nowhere."""
    fast: System | None
    """DA-DLM where it is fast enough: where ROUGE is highest then. None: nowhere."""

    @property
    def ours(self) -> list[System]:
        """What of DA-DLM is compared with the others."""
        return list(dict.fromkeys(one for one in (self.best["dadlm"], self.filled, self.fast) if one))

    @property
    def rows(self) -> list[System]:
        """What tables show."""
        shown = [System(family="ar"), *AS_IN_PAPER]
        for one in (self.best["bd3lm"], *self.ours):
            shown += [one.plain, one.plain.infilling, one]
        return list(dict.fromkeys(shown))

    @property
    def differences(self) -> list[tuple[System, System]]:
        ar, theirs = System(family="ar"), self.best["bd3lm"]
        pairs = [(one, other) for one in self.ours for other in (theirs, ar)] + [(theirs, ar)]
        for one in (*self.ours, theirs):
            pairs += [(one.plain.infilling, one.plain), (one, one.plain)]
        pairs += [(System(family="dadlm", paper=True), System(family="bd3lm", paper=True))]
        return list(dict.fromkeys(pair for pair in pairs if pair[0] != pair[1]))


def choose(held_out: Numbers) -> Chosen:
    found = held_out["systems"]

    def best(some: list[System]) -> System:
        return max(some, key=lambda one: found[one.label]["average"]["mean"])

    def tpf(one: System) -> float:
        return found[one.label]["tpf"]["mean"]

    families = {family: [one for one in SWEPT if one.family == family] for family in ("bd3lm", "dadlm")}
    ours = families["dadlm"]
    plain = best([one for one in ours if not one.infill])
    filled = [one for one in ours if one.plain == plain and tpf(one) >= (1 + GAIN) * tpf(plain)]
    fast = [one for one in ours if tpf(one) >= FAST]
    return Chosen(
        best={family: best(some) for family, some in families.items()},
        filled=best(filled) if filled else None,
        fast=best(fast) if fast else None,
    )


def compare(out: Path) -> Numbers:
    """For each set and for all pairs together: scores, tokens per pass, paired differences; the times; and
    what the held-out pairs say. `out` is the folder of `research.summaries`.
    """
    folder = out / "evaluation"
    held_out = measured_on_held_out(folder)
    chosen = choose(held_out)
    labels = [system.label for system in chosen.rows]
    pieces = {label: {name: _pieces(folder / label / name) for name in SETS} for label in labels}
    for found in pieces.values():
        found[ALL] = [piece for name in SETS for piece in found[name]]
    numbers: Numbers = {
        name: _set({label: pieces[label][name] for label in labels}, chosen) for name in (*SETS, ALL)
    }
    files = {label: folder / label / "times.json" for label in labels}
    numbers["times"] = {label: json.loads(file.read_text()) for label, file in files.items() if file.exists()}
    numbers["recipe"] = json.loads((out / RECIPE).read_text())
    first = {family: next(one.label for one in chosen.rows if one.family == family) for family in FAMILIES}
    numbers["models"] = {family: _model(folder / label / "xsum") for family, label in first.items()}
    numbers["tuning"] = {family: _validations(out / family / "metrics.jsonl") for family in FAMILIES}
    numbers[HELD_OUT] = held_out
    return numbers | {"claims": claims(numbers)}


def measured_on_held_out(folder: Path) -> Numbers:
    rows = {one.label: _pieces(folder / one.label / HELD_OUT) for one in (System(family="ar"), *SWEPT)}
    return {
        "pairs": len(rows["dadlm"]),
        "systems": {
            label: {"average": asdict(bootstrap(_scores(some, "rouge")[:, 3]))} | _counts(some)
            for label, some in rows.items()
        },
    }


def _pieces(folder: Path) -> list[dict[str, Any]]:
    """One for each pair, in the order of the file."""
    # Of bytes: those of a text would also be cut at U+2028.
    lines = (folder / "summarisation.pieces.jsonl").read_bytes().splitlines()[1:]
    found = dict(json.loads(line) for line in lines)
    return [found[str(row)] for row in range(len(found))]


def _model(folder: Path) -> Numbers:
    return json.loads((folder / "summarisation.json").read_text())["model"]


def _validations(file: Path) -> list[Numbers]:
    entries = map(json.loads, file.read_bytes().splitlines())
    return [entry for entry in entries if "valid_rouge" in entry]


def _set(pieces: dict[str, list[dict[str, Any]]], chosen: Chosen) -> Numbers:
    average = {label: _scores(some, "rouge")[:, 3] for label, some in pieces.items()}
    return {
        "pairs": len(average["ar"]),
        "lead": _intervals(_scores(pieces["ar"], "lead")),
        "systems": {
            label: _intervals(_scores(some, "rouge")) | _counts(some) for label, some in pieces.items()
        },
        "differences": {
            _pair(one, other): asdict(bootstrap(average[one.label] - average[other.label]))
            for one, other in chosen.differences
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
    """What was to be shown over all pairs, where DA-DLM is best and where it is fast; whether it holds."""
    chosen, names = choose(numbers[HELD_OUT]), ("claim", "must", "measured", "holds")
    rows = [row for one in chosen.ours for row in _compared(numbers, one, chosen.best["bd3lm"])]
    filled = [one for ours in chosen.ours for one in (ours.plain.infilling, ours) if one.infill]
    rows += [row for one in filled for row in _infilled(numbers, one)]
    return [dict(zip(names, row, strict=True)) for row in dict.fromkeys(rows)]


def _pair(one: System, other: System) -> str:
    """Key of a difference."""
    return f"{one.label} - {other.label}"


Claim = tuple[str, str, str, bool | None]


def _compared(numbers: Numbers, ours: System, theirs: System) -> Iterator[Claim]:
    pooled, times = numbers[ALL], numbers["times"]
    to_bd3lm, to_ar = (pooled["differences"][_pair(ours, one)] for one in (theirs, System(family="ar")))
    own, other = (pooled["systems"][one.label]["tpf"] for one in (ours, theirs))
    name, beside = ours.shown, theirs.shown
    yield f"{name} - {beside}: ROUGE", "≥ 0", _signed(to_bd3lm), to_bd3lm["mean"] >= 0
    yield f"{name} - {beside}: its interval", "above -1.0", _signed(to_bd3lm), to_bd3lm["low"] > -1.0
    yield f"{name} - AR: ROUGE", "≥ -0.5", _signed(to_ar), to_ar["mean"] >= -0.5
    yield f"{name}: TPF", f"≥ {FAST}", with_interval(own, 2), own["mean"] >= FAST
    both, apart = f"{with_interval(own, 2)}, {with_interval(other, 2)}", own["low"] > other["high"]
    yield f"{name}: TPF", f"above that of {beside}, intervals apart", both, apart
    for kind in ("alone", "served"):
        claim, must = f"{name}: ms per summary, {kind}", "below AR's"
        if ours.label in times:
            own_ms, ar_ms = times[ours.label][kind], times["ar"][kind]
            yield claim, must, f"{own_ms:.0f}, {ar_ms:.0f}", own_ms < ar_ms
        else:
            yield claim, must, "not measured", None


def _infilled(numbers: Numbers, filled: System) -> Iterator[Claim]:
    """What infilling gains, and what it costs."""
    pooled, plain = numbers[ALL], filled.plain.label
    tpf = [pooled["systems"][label]["tpf"]["mean"] for label in (filled.label, plain)]
    gain, cost = tpf[0] / tpf[1] - 1, -pooled["differences"][_pair(filled, filled.plain)]["mean"]
    yield f"{filled.shown}: TPF", f"≥ {GAIN:+.0%}", f"{gain:+.0%}", gain >= GAIN
    yield f"{filled.shown}: ROUGE lost", "< 0.3", f"{cost:+.2f}", cost < 0.3


def tables(numbers: Numbers) -> str:
    """Markdown: a table for each set and for all pairs, the paper's rows beside; what the held-out pairs say;
    the claims."""
    parts = [_recipe(numbers["recipe"])]
    parts += [_table(name, SETS.get(name, "All sets"), numbers) for name in (*SETS, ALL)]
    parts += [_thresholds(numbers[HELD_OUT]), _tuning(numbers["tuning"])]
    verdicts = {True: "yes", False: "**no**", None: "–"}
    rows = [[row["claim"], row["must"], row["measured"], verdicts[row["holds"]]] for row in numbers["claims"]]
    parts.append(_even(["over all pairs", "must be", "measured", "holds"], rows))
    parts.append(
        f"Milliseconds of a single summary on {numbers['times']['ar']['machine']}: by a call of `generate` "
        "of its own, which on CUDA captures its graphs anew, and by a server that has them; they grow with "
        "the tokens of a summary. The splits are our own: these numbers cannot be set beside published "
        "ones. The paper's rows are of models of another size, trained on other text."
    )
    return "\n\n".join(parts) + "\n"


def _recipe(recipe: Numbers) -> str:
    """How the three were fine-tuned, in a sentence or two."""
    masks = f", each masked {recipe['masks']} times" if recipe["masks"] > 1 else ""
    dropout = f" Dropout {recipe['dropout']:g}." if recipe["dropout"] else ""
    return (
        f"BD3LM and DA-DLM were fine-tuned for {recipe['steps']:,} steps of {recipe['batch_size']} pairs"
        f"{masks}; AR for {recipe['ar_steps']:,}.{dropout}"
    )


def _table(name: str, title: str, numbers: Numbers) -> str:
    found, lead = numbers[name], numbers[name]["lead"]
    has_times = name == ALL
    head = ["", "R-1", "R-2", "R-L", "average", "TPF", "tokens"]
    head += ["ms alone", "ms served"] if has_times else ["the paper: average, TPF"] if name in PAPER else []
    rows = [["first sentence", *(with_interval(lead[score], 2) for score in SCORES)]]
    for label, measured in found["systems"].items():
        system = SYSTEMS[label]
        row = [system.shown, *(with_interval(measured[score], 2) for score in (*SCORES, "tpf"))]
        row.append(f"{measured['tokens'] / found['pairs']:.1f}")
        if has_times:
            times = numbers["times"].get(label, {})
            row += [f"{times[kind]:.0f}" if times else "–" for kind in ("alone", "served")]
        elif name in PAPER and (system.paper or system.family == "ar"):
            theirs = SUMMARISATION[PAPER[name]][system.family, bool(system.infill)]
            row.append(f"{theirs.average:.2f}, {theirs.tpf:.2f}")
        rows.append(row)
    lines = [f"### {title}, {found['pairs']} pairs", "", _even(head, rows)]
    lines += ["", "Paired differences in average ROUGE, 95% intervals:", ""]
    lines += _differences(found["differences"], choose(numbers[HELD_OUT]))
    if max(one["average"]["mean"] for one in found["systems"].values()) < lead["average"]["mean"] + 1:
        lines += ["", "No model is clearly above the first sentence: at this size none can summarise."]
    return "\n".join(lines)


def _thresholds(found: Numbers) -> str:
    chosen = choose(found)
    rows = []
    for threshold in THRESHOLDS:
        measured = [found["systems"][one.label] for one in SWEPT if one.threshold == threshold]
        cells = (f"{with_interval(one['average'], 2)}, {one['tpf']['mean']:.2f}" for one in measured)
        rows.append([f"{threshold:g}", *cells])
    head = [one.shown for one in SWEPT if one.threshold == THRESHOLDS[0]]
    title = f"### Held out from training, {found['pairs']} pairs: average ROUGE and TPF at each threshold"
    best = " and ".join(one.shown for one in chosen.best.values())
    said = f"Infilling: k and r; {SUMMARY_INFILL[0]} and {SUMMARY_INFILL[1]} where none are named. Chosen as "
    said += f"best: {best}; as best of those of DA-DLM with a TPF of at least {FAST}: "
    said += f"{chosen.fast.shown if chosen.fast else 'none has it'}; as best of those whose infilling gains "
    said += (
        f"{GAIN:.0%} where DA-DLM is best without: {chosen.filled.shown if chosen.filled else 'none does'}. "
    )
    said += f"AR: {with_interval(found['systems']['ar']['average'], 2)}."
    return "\n".join([title, "", _even(["threshold", *head], rows), "", said])


def _tuning(found: dict[str, list[Numbers]]) -> str:
    """Loss and ROUGE of held-out pairs on the way."""
    entries = {family: {entry["step"]: entry for entry in some} for family, some in found.items()}
    rows = []
    for step in sorted({step for some in entries.values() for step in some}):
        measured = (entries[family].get(step) for family in FAMILIES)
        cells = (f"{one['valid_loss']:.3f}, {one['valid_rouge']:.2f}" if one else "–" for one in measured)
        rows.append([f"{step:,}", *cells])
    head = ["step", *(NAMES[family] for family in FAMILIES)]
    return "\n".join(["### Fine-tuning: held-out loss (nats) and ROUGE", "", _even(head, rows)])


def _differences(found: dict[str, dict[str, float]], chosen: Chosen) -> Iterator[str]:
    for one, other in chosen.differences:
        yield f"- {one.shown} - {other.shown}: {_signed(found[_pair(one, other)])}"


def _even(head: list[str], rows: list[list[str]]) -> str:
    """A table whose rows may lack their last cells."""
    return table(head, [row + [""] * (len(head) - len(row)) for row in rows]).rstrip()


def _signed(value: dict[str, float]) -> str:
    return "{mean:+.2f} [{low:+.2f}, {high:+.2f}]".format(**value)


def difference(one: Path, other: Path) -> dict[str, float]:
    """In average ROUGE over all pairs, of two folders of the same pairs."""
    first, second = (
        _scores([piece for name in SETS for piece in _pieces(folder / name)], "rouge")[:, 3]
        for folder in (one, other)
    )
    return asdict(bootstrap(first - second))


if __name__ == "__main__":
    print(_signed(difference(Path(sys.argv[1]), Path(sys.argv[2]))))

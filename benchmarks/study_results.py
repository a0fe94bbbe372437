"""What the study left in benchmarks/results/study, found by the names of its plan. Reads, computes nothing.

    NAME.json                                  `study.py train` (there OUT/NAME/curve.json)
    measured/{reconstruction,perplexity}-*     `study.py measure`
    texts/generation.json, texts/samples.json  `study_texts.py measure`
    speed/latency-BATCH.json, speed/texts.json `study_speed.py`
    judge/A-against-B.json                     `study_judge.py`
    summaries/summaries.json                   `summaries.py`

A name is FAMILY-N. `-long`: a longer last stage; `-matched`: BD3LM with as many more steps as a DA-DLM of
that length costs; `news-`: on Wikinews at context 128; `-position`: texts of that run, drawn with
nucleus="position".
"""

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dadlm.evaluate.subject import NAMES

Facts = Mapping[str, Any]
Pair = tuple[str, str]

FOLDER = Path(__file__).with_name("results") / "study"
SIZES = (16, 8, 4)
LENGTHS = ("", "-long")
NEWS = "news-"


@dataclass(frozen=True, kw_only=True)
class Results:
    """All that is there; what is not, is missing from the mappings or None."""

    curves: dict[str, Facts]
    reconstruction: dict[str, Facts]
    """Of single models, those of pairs included: value, interval, bound, gap."""
    pairs: dict[Pair, Facts]
    """Reconstruction of two models on the same masks."""
    perplexity: dict[str, Facts]
    generation: Facts | None
    samples: list[Facts]
    latency: dict[int, Facts]
    """By batch size."""
    speed: Facts | None
    judge: dict[Pair, Facts]
    summaries: Facts | None

    def steps(self, name: str) -> int | None:
        """Optimiser steps of a run and of all that it stands on; None where one of them is not known."""
        total, at = 0, name
        while at is not None:
            if at not in self.curves:
                return None
            total, at = total + self.curves[at]["steps"], self.curves[at]["after"]
        return total


def read_results(folder: Path = FOLDER) -> Results:
    found = [_read(file) for file in sorted((folder / "measured").glob("*.json"))]
    of_kind = {
        kind: [one for one in found if one["kind"] == kind] for kind in ("reconstruction", "perplexity")
    }
    pairs = [one for one in of_kind["reconstruction"] if one["against"]]
    latency: dict[int, Facts] = {
        int(file.stem[8:]): _read(file) for file in (folder / "speed").glob("latency-*.json")
    }
    return Results(
        curves={one["name"]: one for one in map(_read, sorted(folder.glob("*.json")))},
        reconstruction=dict(_single(of_kind["reconstruction"])),
        pairs={(one["model"]["name"], one["against"]["name"]): one for one in pairs},
        perplexity={one["model"]["name"]: one for one in of_kind["perplexity"]},
        generation=_read_if(folder / "texts" / "generation.json"),
        samples=(_read_if(folder / "texts" / "samples.json") or {"samples": []})["samples"],
        latency=latency,
        speed=_read_if(folder / "speed" / "texts.json"),
        judge={(one["a"], one["b"]): one for one in map(_read, sorted((folder / "judge").glob("*.json")))},
        summaries=_read_if(folder / "summaries" / "summaries.json"),
    )


def take(runs: Path, folder: Path = FOLDER) -> None:
    """Copy the curves and measurements of runs/study, and nothing large, to where the page is made from."""
    (folder / "measured").mkdir(parents=True, exist_ok=True)
    for file in runs.glob("*/curve.json"):
        shutil.copyfile(file, folder / f"{file.parent.name}.json")
    for file in (runs / "measured").glob("*.json"):
        shutil.copyfile(file, folder / "measured" / file.name)


def pairs_of(prefix: str = "") -> list[Pair]:
    """DA-DLM and the BD3LM of equal steps; on Wikipedia short and long, and N = 16 with equal compute."""
    lengths = LENGTHS if not prefix else ("",)
    equal = [(f"{prefix}dadlm-{N}{x}", f"{prefix}bd3lm-{N}{x}") for x in lengths for N in SIZES]
    return equal if prefix else equal + matched_pairs()


def matched_pairs() -> list[Pair]:
    return [(f"dadlm-16{length}", f"bd3lm-16{length}-matched") for length in LENGTHS]


def size_of(name: str) -> int | None:
    """The block size that a name tells."""
    found = re.match(rf"(?:{NEWS})?(?:base|bd3lm|dadlm)-(\d+)", name)
    return int(found[1]) if found else None


def prefix_of(name: str) -> str:
    """What tells the text: nothing for Wikipedia."""
    return NEWS if name.startswith(NEWS) else ""


def family_of(name: str) -> str:
    first = name.removeprefix(NEWS).partition("-")[0]
    return "bd3lm" if first == "base" else first  # on which BD3LM and DA-DLM of a block size both stand


def rank(name: str) -> tuple[int, int, str]:
    """The paper's order: by family, large blocks first."""
    return list(NAMES).index(family_of(name)), -(size_of(name) or 0), name


def _single(found: Sequence[Facts]) -> Iterator[tuple[str, Facts]]:
    names = ("value", "interval", "bound", "gap")
    for one in found:
        for side, prefix in (("model", ""), ("against", "against_")):
            if one[side]:
                yield one[side]["name"], {name: one[prefix + name] for name in names}


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))


def _read_if(file: Path) -> dict[str, Any] | None:
    return _read(file) if file.exists() else None

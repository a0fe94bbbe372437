"""The result files of the study, read as they are.

    runs/NAME.json                             `research.study train` (there OUT/NAME/curve.json)
    measured/{reconstruction,perplexity}-*     `research.study measure`
    texts/generation.json, texts/samples.json  `research.texts measure`
    speed/latency-BATCH.json, speed/texts.json `research.speed`
    judge/A-against-B.json                     `research.judge`
    summaries/summaries.json                   `research.summaries`

Names are keys, never parsed: runs/NAME.json says what a run is; rows of texts and of speed have its name as
`run`, whether it is `matched`, and the `nucleus` they were drawn with; `model` is what tables call them.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dadlm.evaluate.subject import NAMES
from research.plan import Pair, plan

Facts = Mapping[str, Any]

FOLDER = Path(__file__).with_name("results")


@dataclass(frozen=True, kw_only=True)
class Results:
    """All results there are; others are missing from the mappings, or None."""

    runs: dict[str, Facts]
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

    def facts(self, name: str) -> Facts:
        """What a run is: from its file, or from the plan where it was not trained here."""
        return self.runs.get(name) or plan()[name].facts

    def of_role(self, *roles: str) -> dict[str, Facts]:
        return {name: run for name, run in self.runs.items() if run["role"] in roles}

    def steps(self, name: str) -> int | None:
        """Optimiser steps of a run and of all that it stands on; None where one of them is not known."""
        total, at = 0, name
        while at is not None:
            if at not in self.runs:
                return None
            total, at = total + self.runs[at]["steps"], self.runs[at]["after"]
        return total


def read_results(folder: Path = FOLDER) -> Results:
    found = [_read(file) for file in sorted((folder / "measured").glob("*.json"))]
    of_kind = {
        kind: [one for one in found if one["kind"] == kind] for kind in ("reconstruction", "perplexity")
    }
    pairs = [one for one in of_kind["reconstruction"] if one["against"]]
    latency = [_read(file) for file in sorted((folder / "speed").glob("latency-*.json"))]
    return Results(
        runs={one["name"]: one for one in map(_read, sorted((folder / "runs").glob("*.json")))},
        reconstruction=dict(_single(of_kind["reconstruction"])),
        pairs={(one["model"]["name"], one["against"]["name"]): one for one in pairs},
        perplexity={one["model"]["name"]: one for one in of_kind["perplexity"]},
        generation=_read_if(folder / "texts" / "generation.json"),
        samples=(_read_if(folder / "texts" / "samples.json") or {"samples": []})["samples"],
        latency={one["batch_size"]: one for one in latency},
        speed=_read_if(folder / "speed" / "texts.json"),
        judge={(one["a"], one["b"]): one for one in map(_read, sorted((folder / "judge").glob("*.json")))},
        summaries=_read_if(folder / "summaries" / "summaries.json"),
    )


def take(runs: Path, folder: Path = FOLDER) -> None:
    """Copy the curves and measurements of runs/study, and nothing large, to the results folder."""
    for place in ("runs", "measured"):
        (folder / place).mkdir(parents=True, exist_ok=True)
    for file in runs.glob("*/curve.json"):
        shutil.copyfile(file, folder / "runs" / f"{file.parent.name}.json")
    for file in (runs / "measured").glob("*.json"):
        shutil.copyfile(file, folder / "measured" / file.name)


def rank(facts: Facts, name: str) -> tuple[int, int, str]:
    """The paper's order: by family, large blocks first."""
    return list(NAMES).index(facts["family"]), -(facts.get("block_size") or 0), name


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

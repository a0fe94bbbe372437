"""Summaries on real pairs: three models fine-tuned alike, decoded as in the paper, compared pair by pair.

    python benchmarks/summaries.py --data news --ar runs/study/ar --bd3lm runs/study/bd3lm-16-long \\
        --dadlm runs/study/dadlm-16-long

DATA holds folders xsum, cnndm and wikinews_sum, each with train.jsonl and val.jsonl. All models learn from
the three train files together, less every 50th pair, which decides when to stop: the val files are only
reported. Started again, it goes on: finished models and measurements in OUT are kept. OUT/summaries.md is the
table, OUT/summaries.json all numbers.
"""

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from dadlm import Model, load
from dadlm.errors import DadlmError
from dadlm.evaluate import bootstrap, summarisation
from dadlm.evaluate.documents import Documents, read_documents
from dadlm.evaluate.paper import SUMMARISATION, SUMMARY_INFILL
from dadlm.evaluate.subject import NAMES
from dadlm.evaluate.summarisation import paper_settings
from dadlm.recipes import finetune as recipe
from dadlm.train.finetune import finetune

SETS = {"xsum": "XSum", "cnndm": "CNN/DailyMail", "wikinews_sum": "Wikinews"}
PAPER = {"xsum": "XSum", "cnndm": "CNN/DailyMail"}
FAMILIES = ("ar", "bd3lm", "dadlm")
SYSTEMS = [
    (family, infill) for family in FAMILIES for infill in (False, True) if family != "ar" or not infill
]
SCORES = ("rouge1", "rouge2", "rougeL", "average")
HOLD_OUT = 50  # every so many-th training pair decides when to stop


def split(data: Path, out: Path, pairs: int | None) -> tuple[Path, Path]:
    """One file to learn from and one to stop by."""
    files = out / "train.jsonl", out / "stop.jsonl"
    lines = []
    for name in SETS:
        lines += (data / name / "train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:pairs]
    every = min(HOLD_OUT, max(2, len(lines) // 8))
    for place, file in enumerate(files):
        some = [line for number, line in enumerate(lines) if (number % every == 0) == bool(place)]
        file.write_text("".join(some), encoding="utf-8")
    return files


def train(family: str, options: argparse.Namespace) -> None:
    out = Path(options.out)
    learn, stop = split(Path(options.data), out, options.train_pairs)
    base = recipe(model=getattr(options, family), data=(str(learn),), valid=(str(stop),))
    settings = {
        "steps": options.steps,
        "decay": options.steps // 2,
        "warmup": min(100, options.steps // 8),
        "batch_size": options.batch_size,
        "lr": options.lr,
        "valid_every": max(1, options.steps // 4),
        "save_every": max(1, options.steps // 4),
        "device": options.device,
    }
    config = replace(
        base,
        out=str(out / family),
        rouge_pairs=options.rouge_pairs,
        train=replace(base.train, **settings),
    )
    done = finetune(config)
    print(f"{family}: step {done.step}, ROUGE {done.rouge:.2f} on held-out pairs", flush=True)


def measure(
    family: str, infill: bool, name: str, model: Model, options: argparse.Namespace
) -> dict[str, Any]:
    """ROUGE in batches, the time at batch 1 on the first pairs."""
    settings = paper_settings(family, infill=SUMMARY_INFILL if infill else None)
    documents = read_documents(Path(options.data) / name / "val.jsonl", count=options.pairs)
    folder = Path(options.out) / "evaluation" / label(family, infill) / name
    result = summarisation(
        model, documents, settings=settings, batch_size=options.batch_size, name=NAMES[family], out=folder
    )
    return result | {"ms": _alone(model, documents, settings, folder / "alone.json", options.timed)}


def _alone(model: Model, documents: Documents, settings: Any, file: Path, count: int) -> float:
    """Milliseconds of a summary at batch 1, after one for warming up."""
    if not file.exists():
        some = replace(documents, pairs=documents.pairs[:count])
        summarisation(model, replace(some, pairs=some.pairs[:1]), settings=settings, batch_size=1)
        timed = summarisation(model, some, settings=settings, batch_size=1)
        file.write_text(json.dumps({"ms": timed["ms_per_summary"], "pairs": len(some.pairs)}))
    return json.loads(file.read_text())["ms"]


def averages(family: str, infill: bool, options: argparse.Namespace) -> torch.Tensor:
    """Average ROUGE of every pair of all sets, in the same order for every system."""
    values = []
    for name in SETS:
        file = Path(options.out) / "evaluation" / label(family, infill) / name / "summarisation.pieces.jsonl"
        pieces = dict(json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()[1:])
        values += [sum(pieces[str(row)]["rouge"]) / 3 for row in range(len(pieces))]
    return torch.tensor(values, dtype=torch.float64)


def compare(results: dict[str, dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """Paired differences in average ROUGE and tokens per forward pass, pooled over the sets."""
    rouge = {label(*system): averages(*system, options) for system in SYSTEMS}

    def difference(one: str, other: str) -> dict[str, float]:
        return asdict(bootstrap(rouge[one] - rouge[other]))

    def total(system: str, name: str) -> float:
        return sum(result[name] for result in results[system].values())

    def mean(system: str, name: str) -> float:
        """Of all pairs of all sets."""
        of_sets = [(result[name], result["data"]["pairs"]) for result in results[system].values()]
        return sum(value * pairs for value, pairs in of_sets) / sum(pairs for _, pairs in of_sets)

    return {
        "pairs": len(rouge["ar"]),
        "dadlm - bd3lm": difference("dadlm", "bd3lm"),
        "dadlm - ar": difference("dadlm", "ar"),
        "dadlm infill - bd3lm infill": difference("dadlm-infill", "bd3lm-infill"),
        "dadlm infill - dadlm": difference("dadlm-infill", "dadlm"),
        "tpf": {name: total(name, "tokens") / total(name, "forward_passes") for name in results},
        "ms": {name: mean(name, "ms") for name in results},
    }


def label(family: str, infill: bool) -> str:
    return family + ("-infill" if infill else "")


def table(results: dict[str, dict[str, Any]], pooled: dict[str, Any]) -> str:
    """Markdown: a table for each set with the paper's row beside it, then what the pooled pairs say."""
    parts = []
    for name, title in SETS.items():
        lines = [
            f"### {title}, {results['ar'][name]['data']['pairs']} pairs\n",
            "| | R-1 | R-2 | R-L | average | TPF | ms at batch 1 | the paper: average, TPF |",
            "|---|---:|---:|---:|---:|---:|---:|---:|",
        ]
        lead = results["ar"][name]["lead"]
        lines.append(f"| first sentence | {' | '.join(_cell(lead[score]) for score in SCORES)} | | | |")
        for family, infill in SYSTEMS:
            result = results[label(family, infill)][name]
            theirs = SUMMARISATION[PAPER[name]][family, infill] if name in PAPER else None
            beside = "" if theirs is None else f"{theirs.average:.2f}, {theirs.tpf:.2f}"
            scores = " | ".join(_cell(result[score]) for score in SCORES)
            shown = NAMES[family] + (" + infilling" if infill else "")
            lines.append(f"| {shown} | {scores} | {result['tpf']:.2f} | {result['ms']:.0f} | {beside} |")
        best = max(results[label(*system)][name]["average"]["mean"] for system in SYSTEMS)
        if best < lead["average"]["mean"] + 1:
            lines.append("\nNo model is clearly above the first sentence: at this size none can summarise.")
        parts.append("\n".join(lines))
    differences = [
        f"- {name}: {value['mean']:+.2f} [{value['low']:+.2f}, {value['high']:+.2f}]"
        for name, value in pooled.items()
        if " - " in name
    ]
    speeds = [
        f"- {name}: {tpf:.2f} tokens per forward pass, {pooled['ms'][name]:.0f} ms per summary at batch 1"
        for name, tpf in pooled["tpf"].items()
    ]
    head = f"### All {pooled['pairs']} pairs: mean paired difference in average ROUGE, 95% interval\n"
    note = (
        "The splits are our own: these numbers cannot be set beside published ones. The paper's rows are of "
        "models of another size, trained on other text."
    )
    return "\n\n".join([*parts, "\n".join([head, *differences, *speeds]), note]) + "\n"


def _cell(value: dict[str, float]) -> str:
    return "{mean:.2f} [{low:.2f}, {high:.2f}]".format(**value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with xsum, cnndm and wikinews_sum")
    for family in FAMILIES:
        parser.add_argument(f"--{family}", default=family, help="model to start from (the shipped one)")
    parser.add_argument("--out", default="runs/summaries")
    parser.add_argument("--steps", type=int, default=800, help="optimiser steps of each model")
    parser.add_argument("--batch-size", type=int, default=64, help="pairs per step, and decoded side by side")
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument(
        "--rouge-pairs", type=int, default=64, help="held-out pairs summarised at a validation"
    )
    parser.add_argument("--train-pairs", type=int, help="so many of each train file: to try things out")
    parser.add_argument("--pairs", type=int, help="so many of each val file: to try things out")
    parser.add_argument("--timed", type=int, default=20, help="pairs of each set timed at batch 1")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    try:
        for family in FAMILIES:
            train(family, options)
        results: dict[str, dict[str, Any]] = {}
        for family, infill in SYSTEMS:
            model = load(out / family, options.device)
            found = {name: measure(family, infill, name, model, options) for name in SETS}
            results[label(family, infill)] = found
    except DadlmError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    pooled = compare(results, options)
    text = table(results, pooled)
    (out / "summaries.json").write_text(json.dumps({"pooled": pooled, "results": results}, indent=1) + "\n")
    (out / "summaries.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

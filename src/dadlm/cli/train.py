"""dadlm train: a recipe and its options → a trained model."""

import json
import math
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import zip_longest
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table

from dadlm.cli.options import announce_origin, plain_errors
from dadlm.errors import CheckpointError, ConfigError
from dadlm.model.checkpoint import count_parameters
from dadlm.recipes import RECIPES, ROUTES, describe, recipe, route
from dadlm.train import Finished, RunConfig, train, train_route
from dadlm.train.origin import begun_from, shape_from
from dadlm.train.route import stages_of


def run(words: list[str]) -> int:
    flags = {flag: flag in words for flag in ("--plan", "--json")}
    words = [word for word in words if word not in flags]
    if words and words[0] in ("-h", "--help"):
        print(_usage() + "\n\n--plan prints what would be trained, --json prints the result as JSON.")
        print("dadlm train RECIPE --help lists the options with the recipe's defaults.")
        return 0
    if not words or words[0].startswith("-"):
        raise ConfigError("name a route or a recipe first\n" + _usage())
    stages = _stages(words[0], words[1:])
    if flags["--plan"]:
        return _plan(stages, flags["--json"])
    announce_origin(stages[0].init_from or "")
    if len(stages) == 1 and words[0] not in ROUTES:
        done = [train(stages[0], quiet=flags["--json"])]
    else:
        done = train_route(stages, Path(stages[0].out).parent, quiet=flags["--json"])
    return _tell(done, flags["--json"])


def _usage() -> str:
    lines = ["usage: dadlm train ROUTE|RECIPE [--plan] [--json] [options]"]
    for title, names in (("routes, all stages in one", ROUTES), ("recipes, one stage each", RECIPES)):
        lines += [f"\n{title}:", *(f"  {name:16s} {describe(name)}" for name in names)]
    return "\n".join(lines)


def _stages(name: str, words: list[str]) -> list[RunConfig]:
    """The runs of a route or of a single recipe with the options of the command line."""
    for option in ("--data.train", "--data.valid"):
        if len(_values(words, option)) > 1:
            raise ConfigError(
                f"{option} is given more than once, and takes one: several texts are a mixture, "
                f"{option} 1:A.txt,1:B.txt (docs/data.md), or a folder or pattern"
            )
    if name in ROUTES:
        shared, runs = route(name)
        with plain_errors():
            chosen = tyro.cli(type(shared), args=words, default=shared, prog=f"dadlm train {name}")
        return stages_of(chosen, runs)
    start = recipe(name)
    # The shape of the model to start from is the default of the other options, so it must be known first.
    if origin := _values(words, "--init-from"):
        with suppress(CheckpointError):  # training tells
            shape = begun_from(origin[-1], [start.out, *_values(words, "--out")][-1])
            start = replace(start, model=shape_from(start.model, shape))
    with plain_errors():
        return [tyro.cli(type(start), args=words, default=start, prog=f"dadlm train {name}")]


def _values(words: list[str], name: str) -> list[str]:
    """What an option is given, each time it is; the parser keeps the last."""
    found = list[str]()
    for word, after in zip_longest(words, words[1:]):
        option, _, value = word.partition("=")
        if option.replace("_", "-") == name and (value := value or after):
            found.append(value)
    return found


def _tell(done: list[Finished], as_json: bool) -> int:
    """How a run, or a route, ended."""
    last = done[-1]
    result = {
        "folder": str(last.folder),
        "step": last.step,
        "valid": last.valid if math.isfinite(last.valid) else None,  # JSON has no infinity
        "interrupted": last.interrupted,
    }
    if not last.is_first:
        return 130 if last.interrupted else 0  # under torchrun the first process answers for all
    if as_json:
        print(json.dumps(result))
    elif last.interrupted:
        print(f"stopped at step {last.step}; saved in {last.folder}. The same command resumes it.")
    else:
        # A run that was stopped before its first validation, and has fewer steps now, never was.
        validated = math.isfinite(last.valid)
        best = f"best validation {last.valid:.4f}, " if validated else ""
        print(f"finished at step {last.step}; {best}model in {last.folder}/{'best' if validated else 'last'}")
    return 130 if last.interrupted else 0


def _plan(stages: list[RunConfig], as_json: bool) -> int:
    """Print what would be trained, part by part, without training it."""
    counts = [count_parameters(run.model) for run in stages]
    if as_json:
        plans = [{"parameters": parts, "run": asdict(run)} for parts, run in zip(counts, stages, strict=True)]
        print(json.dumps(plans[0] if len(plans) == 1 else plans))
        return 0
    for run, parts in zip(stages, counts, strict=True):
        title = f"{run.model.family}: {run.model.layers} layers, width {run.model.width}"
        table = Table("part", title=f"{title}, {run.train.steps} steps")
        table.add_column("parameters", justify="right")
        for name, count in parts.items():
            table.add_row(name, f"{count:,}")
        Console().print(table)
    return 0

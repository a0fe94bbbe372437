"""dadlm train: a recipe and its options → a trained model."""

import json
import math
from dataclasses import asdict, replace

import tyro
from rich.console import Console
from rich.table import Table

from dadlm.errors import ConfigError
from dadlm.model.checkpoint import count_parameters, locate, read_config
from dadlm.recipes import RECIPES, recipe
from dadlm.train import train


def run(words: list[str]) -> int:
    flags = {flag: flag in words for flag in ("--plan", "--json")}
    words = [word for word in words if word not in flags]
    usage = "usage: dadlm train RECIPE [--plan] [--json] [options]\n\nrecipes:\n  " + "\n  ".join(RECIPES)
    if words and words[0] in ("-h", "--help"):
        print(usage + "\n\n--plan prints what would be trained, --json the result for programs.")
        print("dadlm train RECIPE --help lists the options with the recipe's values.")
        return 0
    if not words or words[0].startswith("-"):
        raise ConfigError("name a recipe first\n" + usage)
    start = recipe(words[0])
    config = tyro.cli(type(start), args=words[1:], default=start, prog=f"dadlm train {words[0]}")
    if flags["--plan"]:
        return _plan(config, flags["--json"])
    done = train(config, quiet=flags["--json"])
    result = {
        "folder": str(done.folder),
        "step": done.step,
        "valid": done.valid if math.isfinite(done.valid) else None,  # JSON has no infinity
        "interrupted": done.interrupted,
    }
    if not done.is_first:
        return 130 if done.interrupted else 0  # under torchrun the first process answers for all
    if flags["--json"]:
        print(json.dumps(result))
    elif done.interrupted:
        print(f"stopped at step {done.step}; saved in {done.folder}. The same command resumes it.")
    else:
        # A run that was stopped before its first validation, and has fewer steps now, never was.
        validated = math.isfinite(done.valid)
        best = f"best validation {done.valid:.4f}, " if validated else ""
        print(f"finished at step {done.step}; {best}model in {done.folder}/{'best' if validated else 'last'}")
    return 130 if done.interrupted else 0


def _plan(run, as_json: bool) -> int:
    """Print what a recipe would train, part by part, without training it."""
    if run.init_from is not None:  # the vocabulary comes from there
        earlier = read_config(locate(run.init_from))
        run = replace(run, model=replace(run.model, vocab_size=earlier.vocab_size, eot_id=earlier.eot_id))
    parts = count_parameters(run.model)
    if as_json:
        print(json.dumps({"parameters": parts, "run": asdict(run)}))
        return 0
    table = Table("part", title=f"{run.model.family}: {run.model.layers} layers, width {run.model.width}")
    table.add_column("parameters", justify="right")
    for name, count in parts.items():
        table.add_row(name, f"{count:,}")
    Console().print(table)
    return 0

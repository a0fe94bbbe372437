"""How far a checkpoint got and with which settings: the small half of a training state.

Decides whether a run may go on from it.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dadlm.errors import CheckpointError, ConfigError
from dadlm.model.files import read_json
from dadlm.noise import NoiseConfig
from dadlm.train.config import RunConfig

# Settings that may change between two parts of a run without changing what has been done so far.
_FREE = {
    "steps",
    "decay",
    "accumulate",
    "apart_rows",  # was of use before the first step
    "valid_every",
    "valid_rows",
    "save_every",
    "log_every",
    "device",
    "compile",
    "graphs",
    "checkpointing",
    "parallel",
}


def read_progress(folder: Path) -> dict[str, Any]:
    """The small half of a training state: step, best value, noise interval, run configuration."""
    file = folder / "training" / "state.json"
    progress = read_json(file, "a training state")
    try:
        NoiseConfig(**progress["noise"])
        if not (isinstance(progress["step"], int) and progress["step"] >= 0):
            raise ValueError(f"step is {progress['step']!r}")
        progress["best"], progress["run"] = float(progress["best"]), dict(progress["run"])
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{file} is not a training state: {error!r}") from error
    return progress


def compare_runs(run: RunConfig, folder: Path) -> None:
    """Refuse to go on with a checkpoint of other settings, before its weights are looked at."""
    _compare(read_progress(folder)["run"], asdict(run), folder)


def _compare(saved: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    def flat(run: dict[str, Any]) -> dict[str, str]:
        parts = {key: value for key, value in run.items() if isinstance(value, dict)}
        items = {f"{part}.{key}": value for part, fields in parts.items() for key, value in fields.items()}
        items["init_from"] = run.get("init_from")
        skip = {f"train.{name}" for name in _FREE} | {"data.cache", "model.vocab_size", "model.eot_id"}
        return {key: json.dumps(value) for key, value in items.items() if key not in skip}

    before, after = flat(saved), flat(now)
    # A setting that did not exist when the run was saved had what is its default now.
    before = flat(asdict(RunConfig())) | before
    changed = [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
    if changed:
        listing = "\n  ".join(f"{key}: {before.get(key)} there, {after.get(key)} now" for key in changed)
        raise ConfigError(
            f"{folder.parent} holds a run with other settings; choose another --out or keep:\n  {listing}"
        )

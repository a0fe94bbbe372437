"""Everything needed to resume exactly where training stopped. A run's folder holds `checkpoints/step-…`, each
complete in itself, and two links, `last` and `best`, that are moved in one atomic step."""

import json
import os
import shutil
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dadlm.errors import CheckpointError, ConfigError
from dadlm.model.checkpoint import check_finite, weights, write_model
from dadlm.model.files import read_json, whole_folder, write_json
from dadlm.noise import NoiseConfig
from dadlm.train.config import RunConfig
from dadlm.train.distributed import TensorFiles, gather_parts, is_sharded, local_part, local_rows, save_rows
from dadlm.train.muon import Muon
from dadlm.train.processes import ALONE, Ranks
from dadlm.train.state import Stream, TrainState

# Settings of `train` that may differ when a run is resumed: they change nothing of what has been done so far.
_FREE = {
    *("steps", "decay", "accumulate", "valid_every", "valid_rows", "save_every", "log_every"),
    *("device", "compile", "graphs", "checkpointing", "parallel"),
}
# Settings of `train` in older folders: those that no longer exist, with their defaults, and those renamed.
_REMOVED = {"power": 1.0, "power_steps": 0, "apart_rows": 0, "block_share": 1.0}
_RENAMED = {"masks": "masks_per_row"}


MANY_STEPS = 1 << 31
"""Stands for an unknown number of averaged steps: an average of this many is not forgotten fast."""
LENGTHS = ("document_tokens", "summary_tokens")
"""Which lengths a fine-tuning has learned, as its `TrainState.metadata` calls them."""


def save_state(state: TrainState, run: RunConfig, out: Path, is_best: bool, ranks: Ranks = ALONE) -> Path:
    """Write a checkpoint, then move the links to it, then delete checkpoints that no link needs. All
    processes of a run call it together; the first one writes, and each one its part of what is sharded."""
    target = out / "checkpoints" / f"step-{state.step:08d}"
    is_saved = ranks.first and target.exists() and (out / "last").resolve() == target.resolve()
    if ranks.any(is_saved):  # this very state: do not put it at risk
        return target
    average = {}  # as in a model's file; only the first process keeps it, on the CPU
    for name, weight in weights(state.model).items():
        whole = gather_parts(state.ema.average[name], weight)
        if ranks.first:
            average[name] = whole.cpu().reshape(() if name in state.scalars else whole.shape)
    with whole_folder(target) if ranks.first else nullcontext(target) as folder:
        folder = Path(ranks.broadcast(str(folder)))  # all write to the first process's temporary folder
        (folder / "training").mkdir(exist_ok=True)
        if ranks.first:
            write_model(folder, state.model, average)
            progress = {"step": state.step, "best": state.best, "data": state.data}
            progress["stream"] = state.start.after(state.step, run.train.batch_size)._asdict()
            progress["averaged"] = state.ema.before
            progress |= {"noise": asdict(state.noise), "run": asdict(run), **state.metadata}
            write_json(folder / "training" / "state.json", progress)
        sharded = any(map(is_sharded, state.model.parameters()))
        if sharded or ranks.first:
            save_rows(_tensors(state), folder / "training", ranks.rank, ranks.size if sharded else 1)
        ranks.wait()
    if ranks.first:
        # `best` before `last`: a run killed in between repeats the step that was best, and links it again.
        if is_best:
            _link(out / "best", target)
        _link(out / "last", target)
        needed = {(out / name).resolve() for name in ("last", "best") if (out / name).exists()}
        for folder in (out / "checkpoints").iterdir():
            if folder.resolve() not in needed:
                shutil.rmtree(folder, ignore_errors=True)
    ranks.wait()  # no process may look at the links before they are moved
    return target


def load_state(state: TrainState, run: RunConfig, folder: Path, ranks: Ranks = ALONE) -> None:
    """Restore a checkpoint into a freshly built state; refuse another run's checkpoint."""
    compare_runs(run, folder)
    progress, out = read_progress(folder), folder.parent
    for name, now in state.metadata.items():
        if (then := progress.get(name, now)) != now:
            what = f"{name} {then}, now it is {now}"
            raise ConfigError(f"{out} holds a run with {what}: choose another --out or keep it")
    if progress["data"] != state.data:
        raise ConfigError(f"the text is not the one that the run in {out} began with; choose another --out")
    with TensorFiles(folder / "training") as files:
        expected = _tensors(state).keys()
        if files.names != expected:
            odd = ", ".join(sorted(files.names ^ expected))
            raise CheckpointError(f"{folder}: the training state does not fit this model; odd: {odd}")
        _set_tensors(state, files, ranks)
    state.step, state.best, state.noise = progress["step"], progress["best"], NoiseConfig(**progress["noise"])


def read_progress(folder: Path) -> dict[str, Any]:
    """The small half of a training state: step, best value, noise interval, run configuration."""
    file = folder / "training" / "state.json"
    progress = read_json(file, "a training state")
    try:
        NoiseConfig(**progress["noise"])
        if not (isinstance(progress["step"], int) and progress["step"] >= 0):
            raise ValueError(f"step is {progress['step']!r}")
        run = progress["run"] = {"model": {}, "data": {}, "train": {}} | progress["run"]
        if not all(isinstance(run[part], dict) for part in ("model", "data", "train")):
            raise ValueError("run has a part that is no object")
        progress["best"], progress["data"] = float(progress["best"]), list(progress.get("data", []))
        # Before streams were counted over stages, each began at nothing.
        batch_size = run["train"].get("batch_size", 0)
        counted = Stream().after(progress["step"], batch_size)._asdict()
        progress["stream"] = Stream(**progress.get("stream", counted))
        # Before averages were counted by themselves, they went on with the stream; after a model of which
        # nothing was known they had no fast start.
        before = progress["stream"].after(-progress["step"], batch_size).steps
        unknown = run.get("init_from") is not None and not before
        progress.setdefault("averaged", MANY_STEPS if unknown else before)
        counts = {name: progress[name] for name in ("averaged", *LENGTHS) if name in progress}
        for name, count in (counts | progress["stream"]._asdict()).items():
            if not (isinstance(count, int) and count >= 0):
                raise ValueError(f"{name} is {count!r}")
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{file} is not a training state: {error!r}") from error
    return progress


def compare_runs(run: RunConfig, folder: Path) -> None:
    """Refuse to resume a checkpoint of other settings, before its weights are read."""
    saved = _current_settings(read_progress(folder)["run"], folder)
    # A setting that did not exist when the run was saved had the value that is its default now.
    before, after = _flat(asdict(RunConfig())) | _flat(saved), _flat(asdict(run))
    changed = [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
    if changed:
        listing = "\n  ".join(f"{key}: {before.get(key)} there, {after.get(key)} now" for key in changed)
        raise ConfigError(
            f"{folder.parent} holds a run with other settings; choose another --out or keep:\n  {listing}"
        )


def _current_settings(saved: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A saved run in the settings of this release; one that was used and no longer exists is refused."""
    train = dict(saved["train"]) if isinstance(saved.get("train"), dict) else {}
    for name, default in _REMOVED.items():
        if (value := train.pop(name, default)) != default:
            raise ConfigError(
                f"{folder.parent} holds a run with train.{name} {value}: this setting no longer exists and "
                "the run cannot be resumed; choose another --out"
            )
    return saved | {"train": {_RENAMED.get(name, name): value for name, value in train.items()}}


def _flat(run: dict[str, Any]) -> dict[str, str]:
    parts = {key: value for key, value in run.items() if isinstance(value, dict)}
    items = {f"{part}.{key}": value for part, fields in parts.items() for key, value in fields.items()}
    items["init_from"] = run.get("init_from")
    skip = {f"train.{name}" for name in _FREE} | {"data.cache", "model.vocab_size", "model.eot_id"}
    return {key: json.dumps(value) for key, value in items.items() if key not in skip}


def _tensors(state: TrainState) -> dict[str, torch.Tensor]:
    """The weights, averages and moments that this process holds, under one flat set of names."""
    tensors = {f"weight.{name}": local_part(tensor) for name, tensor in weights(state.model).items()}
    tensors |= {f"ema.{name}": tensor for name, tensor in state.ema.average.items()}
    for name, parameter in state.model.named_parameters():
        if not parameter.requires_grad:
            continue  # frozen: it has no moments
        moments = moments_of(state.optimizer, parameter)
        tensors |= {f"{key}.{name}": local_part(tensor) for key, tensor in moments.items()}
    return tensors


def moments_of(optimizer: torch.optim.AdamW, parameter: torch.nn.Parameter) -> dict[str, torch.Tensor]:
    """The optimiser creates these at its first step; created here, saving and loading never meet an empty
    state. Muon keeps only one for a matrix."""
    moments = optimizer.state[parameter]
    if not moments:
        moments["exp_avg"] = torch.zeros_like(parameter)
        if not (isinstance(optimizer, Muon) and parameter in optimizer.matrices):
            device = parameter.device if optimizer.defaults["fused"] else torch.device("cpu")
            moments["step"] = torch.zeros((), dtype=torch.float32, device=device)
            moments["exp_avg_sq"] = torch.zeros_like(parameter)
    return moments


def _set_tensors(state: TrainState, files: TensorFiles, ranks: Ranks) -> None:
    """Read this process's rows of everything."""
    whole = weights(state.model)
    with torch.no_grad():
        for name, tensor in _tensors(state).items():
            sharded_as = tensor if name.startswith("step.") else whole[name.partition(".")[2]]
            read_rows(files, name, tensor, sharded_as, ranks)


def read_rows(files: TensorFiles, name: str, tensor: torch.Tensor, like: torch.Tensor, ranks: Ranks) -> None:
    """Read the rows of a tensor that this process holds, sharded as `like` is."""
    saved = files.read(name, *local_rows(like, ranks))
    if saved.shape != (tensor.shape or (1,)):
        raise CheckpointError(f"training state: {name} has rows of shape {tuple(saved.shape[1:])}")
    check_finite({name: saved}, "the training state")
    tensor.copy_(saved.reshape(tensor.shape))


def _link(link: Path, target: Path) -> None:
    """Point a link at a checkpoint in one atomic step: there is always a valid one. (A folder left in its
    place by copying is moved away first.)"""
    temporary = link.with_name(f".{link.name}-new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(os.path.relpath(target, link.parent))
    if link.is_dir() and not link.is_symlink():  # a run that was copied with its links followed
        link.rename(target.with_name(f".{link.name}-copied"))  # among the checkpoints: to be deleted
    os.replace(temporary, link)

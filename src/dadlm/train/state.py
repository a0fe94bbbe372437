"""Everything needed to go on exactly where training stopped, on disk and back.

A run's folder holds `checkpoints/step-…` folders, each complete in itself, and two links, `last` and
`best`, that are moved in one atomic step. All randomness is counted from (seed, step), so there is no
generator state to keep.
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from dadlm.errors import CheckpointError, ConfigError
from dadlm.model import Model
from dadlm.model.checkpoint import weights, write_model
from dadlm.model.files import load_tensors, save_tensors, whole_folder, write_json
from dadlm.noise import NoiseConfig
from dadlm.train.config import RunConfig
from dadlm.train.ema import Ema

# Settings that may change between two parts of a run without changing what has been done so far.
_FREE = {
    "steps",
    "decay",
    "accumulate",
    "valid_every",
    "valid_rows",
    "save_every",
    "log_every",
    "device",
    "compile",
    "graphs",
    "checkpointing",
}


@dataclass
class TrainState:
    """Mutable on purpose: the trainer advances it step by step."""

    model: Model
    ema: Ema
    optimizer: torch.optim.AdamW
    noise: NoiseConfig
    step: int = 0
    best: float = float("inf")
    data: list[str] = field(default_factory=list)
    """Fingerprints of the rows: a run goes on only with the data it began with."""


def save_state(state: TrainState, run: RunConfig, out: Path, is_best: bool) -> Path:
    """Write a checkpoint, then move the links to it, then drop checkpoints that no link needs."""
    target = out / "checkpoints" / f"step-{state.step:08d}"
    if (
        target.exists() and (out / "last").resolve() == target.resolve()
    ):  # it is this very state: do not endanger it
        return target
    with whole_folder(target) as folder:
        write_model(folder, state.model, state.ema.average)
        (folder / "training").mkdir()
        save_tensors(_tensors(state), folder / "training" / "state.safetensors")
        progress = {"step": state.step, "best": state.best, "data": state.data}
        progress |= {"noise": asdict(state.noise), "run": asdict(run)}
        write_json(folder / "training" / "state.json", progress)
    if is_best:  # before `last`: who dies in between repeats the step that was the best, and links it again
        _link(out / "best", target)
    _link(out / "last", target)
    _tidy(out)
    return target


def load_state(state: TrainState, run: RunConfig, folder: Path) -> None:
    """Bring a freshly built state to where the checkpoint left off; refuse another run's checkpoint."""
    progress = read_progress(folder)
    _compare(progress["run"], asdict(run), folder)
    if progress.get("data") != state.data:
        raise ConfigError(
            f"the text is not the one that the run in {folder.parent} began with; choose another --out"
        )
    tensors = load_tensors(folder / "training" / "state.safetensors")
    expected = _tensors(state).keys()
    if tensors.keys() != expected:
        odd = ", ".join(sorted(tensors.keys() ^ expected))
        raise CheckpointError(f"{folder}: the training state does not fit this model; it differs in {odd}")
    _set_tensors(state, tensors)
    state.step, state.best, state.noise = progress["step"], progress["best"], NoiseConfig(**progress["noise"])


def read_progress(folder: Path) -> dict[str, Any]:
    """The small half of a training state: step, best value, noise interval, run configuration."""
    file = folder / "training" / "state.json"
    try:
        progress = json.loads(file.read_text(encoding="utf-8"))
        NoiseConfig(**progress["noise"])
        if not (isinstance(progress["step"], int) and progress["step"] >= 0):
            raise ValueError(f"step is {progress['step']!r}")
        progress["best"], progress["run"] = float(progress["best"]), dict(progress["run"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{file} is not a training state: {error!r}") from error
    return progress


def compare_runs(run: RunConfig, folder: Path) -> None:
    """Refuse to go on with a checkpoint of other settings, before its weights are looked at."""
    _compare(read_progress(folder)["run"], asdict(run), folder)


def start_optimizer(model: Model, run: RunConfig) -> torch.optim.AdamW:
    """AdamW with what DA-DLM adds in a group of its own, so that it can learn faster."""
    named = list(model.named_parameters())
    new = [parameter for name, parameter in named if _is_graph(name)]
    old = [parameter for name, parameter in named if not _is_graph(name)]
    groups = [{"params": old, "scale": 1.0}, {"params": new, "scale": run.train.graph_lr_scale}]
    train = run.train
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=train.lr,
        betas=train.betas,
        eps=1e-8,
        weight_decay=train.weight_decay,
        fused=model.device.type == "cuda",
    )


def _is_graph(name: str) -> bool:
    return name.startswith(("graph.", "head.offset"))


def _tensors(state: TrainState) -> dict[str, torch.Tensor]:
    """Weights, averages and AdamW's moments under one flat set of names."""
    tensors = {f"weight.{name}": tensor for name, tensor in weights(state.model).items()}
    tensors |= {f"ema.{name}": tensor for name, tensor in state.ema.average.items()}
    for name, parameter in state.model.named_parameters():
        moments = _moments(state.optimizer, parameter)
        tensors |= {f"{key}.{name}": tensor for key, tensor in moments.items()}
    return tensors


def _moments(optimizer: torch.optim.AdamW, parameter: torch.nn.Parameter) -> dict[str, torch.Tensor]:
    """AdamW fills these at its first step; made here so that saving and loading never meet an empty state."""
    moments = optimizer.state[parameter]
    if not moments:
        device = parameter.device if optimizer.defaults["fused"] else torch.device("cpu")
        moments["step"] = torch.zeros((), dtype=torch.float32, device=device)
        moments["exp_avg"] = torch.zeros_like(parameter)
        moments["exp_avg_sq"] = torch.zeros_like(parameter)
    return moments


def _set_tensors(state: TrainState, tensors: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in _tensors(state).items():
            if tensor.shape != tensors[name].shape:
                raise CheckpointError(f"training state: {name} has shape {tuple(tensors[name].shape)}")
            tensor.copy_(tensors[name])


def _compare(saved: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    def flat(run: dict[str, Any]) -> dict[str, str]:
        parts = {key: value for key, value in run.items() if isinstance(value, dict)}
        items = {f"{part}.{key}": value for part, fields in parts.items() for key, value in fields.items()}
        items["init_from"] = run.get("init_from")
        skip = {f"train.{name}" for name in _FREE} | {"data.cache", "model.vocab_size", "model.eot_id"}
        return {key: json.dumps(value) for key, value in items.items() if key not in skip}

    before, after = flat(saved), flat(now)
    changed = [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
    if changed:
        listing = "\n  ".join(f"{key}: {before.get(key)} there, {after.get(key)} now" for key in changed)
        raise ConfigError(
            f"{folder.parent} holds a run with other settings; choose another --out or keep:\n  {listing}"
        )


def _link(link: Path, target: Path) -> None:
    """Point a link at a checkpoint in one step: there is always a valid one."""
    temporary = link.with_name(f".{link.name}-new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(os.path.relpath(target, link.parent))
    os.replace(temporary, link)


def _tidy(out: Path) -> None:
    needed = {(out / name).resolve() for name in ("last", "best") if (out / name).exists()}
    for folder in (out / "checkpoints").iterdir():
        if folder.resolve() not in needed:
            shutil.rmtree(folder, ignore_errors=True)


def clipped(noise: NoiseConfig, interval: tuple[float, float]) -> NoiseConfig:
    """The same noise on another interval."""
    return replace(noise, low=interval[0], high=interval[1])

"""Everything needed to go on exactly where training stopped, on disk and back.

A run's folder holds `checkpoints/step-…` folders, each complete in itself, and two links, `last` and
`best`, that are moved in one atomic step. All randomness is counted from (seed, step), so there is no
generator state to keep.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from dadlm import counter
from dadlm.errors import CheckpointError, ConfigError
from dadlm.model import Model
from dadlm.model.checkpoint import check_finite, weights, write_model
from dadlm.model.files import whole_folder, write_json
from dadlm.noise import NoiseConfig
from dadlm.train.config import RunConfig, TrainConfig
from dadlm.train.ema import Ema
from dadlm.train.pieces import Pieces, save_piece, save_whole
from dadlm.train.progress import compare_runs, read_progress
from dadlm.train.ranks import Ranks
from dadlm.train.spread import is_cut, joined_parts, own_part, own_rows


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
    numbers: frozenset[str] = frozenset()
    """Weights without a dimension; where the model is sharded they are rows of one."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What else is to be known of a run's models; saved beside the step. A run goes on only with the same."""

    def begin_step(self, train: TrainConfig, rank: int = 0) -> None:
        """Set what is a function of the step's number: learning rates and dropout."""
        seed = int(counter.hash_counters(train.seed, self.step, counter.DROPOUT)) & (2**62 - 1)
        torch.manual_seed(seed + rank)  # each process drops other units
        for group in self.optimizer.param_groups:
            group["lr"] = train.lr_at(self.step) * group["scale"]


def save_state(
    state: TrainState, run: RunConfig, out: Path, is_best: bool, ranks: Ranks | None = None
) -> Path:
    """Write a checkpoint, then move the links to it, then drop checkpoints that no link needs.

    All processes of a run call it together; the first one writes, and each its part of what is sharded.
    """
    ranks = ranks or Ranks()
    target = out / "checkpoints" / f"step-{state.step:08d}"
    is_saved = ranks.first and target.exists() and (out / "last").resolve() == target.resolve()
    if ranks.any(is_saved):  # it is this very state: do not endanger it
        return target
    average = _whole_average(state, ranks)
    with _folder_of_all(target, ranks) as folder:
        if ranks.first:
            write_model(folder, state.model, average)
            progress = {"step": state.step, "best": state.best, "data": state.data}
            progress |= {"noise": asdict(state.noise), "run": asdict(run), **state.facts}
            write_json(folder / "training" / "state.json", progress)
        if any(map(is_cut, state.model.parameters())):
            save_piece(_tensors(state), folder / "training", ranks.rank, ranks.size)
        elif ranks.first:
            save_whole(_tensors(state), folder / "training")
    if ranks.first:
        # `best` before `last`: who dies in between repeats the step that was the best, and links it again.
        if is_best:
            _link(out / "best", target)
        _link(out / "last", target)
        _tidy(out)
    ranks.wait()  # nobody looks for the links before they are moved
    return target


@contextmanager
def _folder_of_all(target: Path, ranks: Ranks) -> Iterator[Path]:
    """The first process' temporary folder, which takes the target's place when all have written to it."""
    if ranks.first:
        with whole_folder(target) as folder:
            (folder / "training").mkdir()
            ranks.agreed_text(str(folder))
            yield folder
            ranks.wait()
    else:
        yield Path(ranks.agreed_text(""))
        ranks.wait()


def _whole_average(state: TrainState, ranks: Ranks) -> dict[str, torch.Tensor]:
    """The averaged weights as a model's file has them; only the first process keeps them, on the CPU."""
    average = {}
    for name, weight in weights(state.model).items():
        whole = joined_parts(state.ema.average[name], weight)
        if ranks.first:
            average[name] = whole.cpu().reshape(() if name in state.numbers else whole.shape)
    return average


def load_state(state: TrainState, run: RunConfig, folder: Path, ranks: Ranks | None = None) -> None:
    """Bring a freshly built state to where the checkpoint left off; refuse another run's checkpoint."""
    compare_runs(run, folder)
    progress = read_progress(folder)
    for name, now in state.facts.items():
        if progress.get(name, now) != now:
            raise ConfigError(
                f"{folder.parent} holds a run with {name} {progress[name]}, now it is {now}: "
                "choose another --out or keep it"
            )
    if progress.get("data") != state.data:
        raise ConfigError(
            f"the text is not the one that the run in {folder.parent} began with; choose another --out"
        )
    with Pieces(folder / "training") as pieces:
        expected = _tensors(state).keys()
        if pieces.names != expected:
            odd = ", ".join(sorted(pieces.names ^ expected))
            raise CheckpointError(
                f"{folder}: the training state does not fit this model; it differs in {odd}"
            )
        _set_tensors(state, pieces, ranks or Ranks())
    state.step, state.best, state.noise = progress["step"], progress["best"], NoiseConfig(**progress["noise"])


def start_optimizer(model: Model, run: RunConfig) -> torch.optim.AdamW:
    """AdamW with what DA-DLM adds in a group of its own, so that it can learn faster."""
    named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
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
    """Weights, averages and AdamW's moments, as much as this process holds, under one flat set of names."""
    tensors = {f"weight.{name}": own_part(tensor) for name, tensor in weights(state.model).items()}
    tensors |= {f"ema.{name}": tensor for name, tensor in state.ema.average.items()}
    for name, parameter in state.model.named_parameters():
        if not parameter.requires_grad:
            continue  # frozen: it has no moments
        moments = _moments(state.optimizer, parameter)
        tensors |= {f"{key}.{name}": own_part(tensor) for key, tensor in moments.items()}
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


def _set_tensors(state: TrainState, pieces: Pieces, ranks: Ranks) -> None:
    """Read this process' rows of everything."""
    whole = weights(state.model)
    with torch.no_grad():
        for name, tensor in _tensors(state).items():
            cut = tensor if name.startswith("step.") else whole[name.partition(".")[2]]
            saved = pieces.read(name, *own_rows(cut, ranks))
            if saved.shape != (tensor.shape or (1,)):
                raise CheckpointError(f"training state: {name} has rows of shape {tuple(saved.shape[1:])}")
            check_finite({name: saved}, "the training state")
            tensor.copy_(saved.reshape(tensor.shape))


def _link(link: Path, target: Path) -> None:
    """Point a link at a checkpoint in one step: there is always a valid one. (A folder that copying has left
    in its place is moved away first.)"""
    temporary = link.with_name(f".{link.name}-new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(os.path.relpath(target, link.parent))
    if link.is_dir() and not link.is_symlink():  # a run that was copied with its links followed
        link.rename(target.with_name(f".{link.name}-copied"))  # for `_tidy` to drop
    os.replace(temporary, link)


def _tidy(out: Path) -> None:
    needed = {(out / name).resolve() for name in ("last", "best") if (out / name).exists()}
    for folder in (out / "checkpoints").iterdir():
        if folder.resolve() not in needed:
            shutil.rmtree(folder, ignore_errors=True)


def clipped(noise: NoiseConfig, interval: tuple[float, float]) -> NoiseConfig:
    """The same noise on another interval."""
    return replace(noise, low=interval[0], high=interval[1])

"""All stages of a scale, one after the other: each in a folder of its own, with one log and one plot for all.
Stages that are done are skipped, so the same command resumes a route anywhere."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from dadlm.decode.picture import new_figure, save_figure
from dadlm.errors import CheckpointError, ConfigError
from dadlm.model.checkpoint import locate, read_config
from dadlm.train.config import DataConfig, RunConfig
from dadlm.train.loop import Finished
from dadlm.train.origin import STAGES, begun_from, shape_from
from dadlm.train.processes import joined
from dadlm.train.trainer import train_stage


@dataclass(frozen=True, kw_only=True)
class RouteConfig:
    """Options shared by all stages of a route. For more options, train the stages one by one."""

    data: DataConfig = field(default_factory=DataConfig)
    out: str = "runs/route"
    """Folder of the route, with a subfolder for each stage; an unfinished route found there is resumed."""
    init_from: str | None = None
    """Model to start from, which also determines the shape: name of a shipped model (dadlm,
    bd3lm, ar), folder of a model or training run. Stages before its family are skipped."""
    length: float = 1.0
    """Multiplies the number of steps of every stage."""
    batch_size: int | None = None
    """Rows per step. None: as in the recipe."""
    accumulate: int | None = None
    """Micro-batches per step and process. None: as in the recipe."""
    seed: int = 0
    """Seed of initial weights, data order, noise and dropout."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 on CUDA, fp32 elsewhere."""
    device: str = "auto"
    """cpu, cuda, or auto (cuda if available)."""
    compile: bool = False
    """Use torch.compile on parts of the model: slow to start, faster afterwards."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Under torchrun: ddp (every process holds a full copy) or fsdp (every process holds a shard)."""

    def __post_init__(self) -> None:
        if not 0 < self.length < float("inf"):
            raise ConfigError(f"length must be positive, got {self.length}")


def stages_of(route: RouteConfig, recipes: Sequence[RunConfig]) -> list[RunConfig]:
    """The runs of a route, each starting from the one before."""
    stages, before = [], route.init_from
    for run in recipes if before is None else _shaped(route, before, recipes):
        out = _folder(route, run)
        train = replace(run.train, **_settings(route, run))
        stages.append(replace(run, data=route.data, train=train, out=out, init_from=before))
        before = out
    return stages


def _shaped(route: RouteConfig, origin: str, recipes: Sequence[RunConfig]) -> list[RunConfig]:
    """The stages that may follow a model, in its shape; if it is gone, in that of those already begun."""
    try:
        theirs = read_config(locate(origin))
    except CheckpointError:
        begun = [last for run in recipes if (last := Path(_folder(route, run), "last")).exists()]
        if not begun:
            raise
        origin, theirs = str(begun[0]), read_config(begun[0])
    runs = [run for run in recipes if theirs.family in STAGES[run.model.family]]
    shapes = [shape_from(run.model, begun_from(origin, _folder(route, run))) for run in runs]
    return [replace(run, model=model) for run, model in zip(runs, shapes, strict=True)]


def _folder(route: RouteConfig, run: RunConfig) -> str:
    return str(Path(route.out) / run.model.family)


def _settings(route: RouteConfig, run: RunConfig) -> dict[str, Any]:
    """What the route changes of a stage's `train`."""
    lengths = {name: round(getattr(run.train, name) * route.length) for name in ("steps", "decay", "warmup")}
    lengths["steps"] = max(1, lengths["steps"])
    same = ("seed", "precision", "device", "compile", "parallel")
    chosen = {name: getattr(route, name) for name in ("batch_size", "accumulate")}
    given = {name: value for name, value in chosen.items() if value is not None}
    return lengths | given | {name: getattr(route, name) for name in same}


def train_route(stages: Sequence[RunConfig], out: str | Path, *, quiet: bool = False) -> list[Finished]:
    """Train the stages, or resume them where they were interrupted; returns how each one that ran ended."""
    done = []
    with joined(stages[0].train) as ranks:  # processes can join only once
        for run in stages:
            done.append(train_stage(run, ranks, quiet=quiet))
            if ranks.first:
                write_log(stages, Path(out))
            if done[-1].interrupted:
                break
    return done


def write_log(stages: Sequence[RunConfig], out: Path) -> None:
    """Write the route's `metrics.jsonl`, gathered from those of its stages, and its plot."""
    entries = list(_entries(stages))
    text = "".join(json.dumps(entry) + "\n" for entry in entries)
    (out / "metrics.jsonl").write_text(text, encoding="utf-8")
    try:
        _draw(entries, out / "route.svg")
    except ConfigError:  # without matplotlib, which comes with the extra `figures`, there is no plot
        return


def _entries(stages: Sequence[RunConfig]) -> Iterator[dict[str, Any]]:
    """Every line of the stages' logs with its stage; `route_step` counts the steps of all of them."""
    before = 0
    for run in stages:
        file = Path(run.out) / "metrics.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        for line in lines:
            values = json.loads(line)
            yield {"stage": run.model.family, "route_step": before + values["step"], **values}
        before += run.train.steps


def _draw(entries: Sequence[dict[str, Any]], file: Path) -> None:
    """Training loss and validation of all stages over the steps of the route."""
    figure = new_figure(8, 4)
    axes = figure.add_subplot()
    curves = {"loss": "0.8", "valid_loss": "C0", "valid_bound": "C2", "valid_reconstruction": "C1"}
    named: set[str] = set()
    for stage in dict.fromkeys(entry["stage"] for entry in entries):
        own = [entry for entry in entries if entry["stage"] == stage]
        first = own[0]["route_step"] - own[0]["step"]
        axes.axvline(first, color="0.6", linewidth=0.8)
        axes.text(first, 1.01, f" {stage}", transform=axes.get_xaxis_transform())
        for name, colour in curves.items():
            points = [(entry["route_step"], entry[name]) for entry in own if name in entry]
            if points:
                label = None if name in named else name.replace("_", " ")
                axes.plot(*zip(*points, strict=True), color=colour, label=label, linewidth=1.2)
                named.add(name)
    axes.set(xlabel="step of the route", ylabel="nats per token")
    if named:  # not before the first line of the log that holds a loss
        axes.legend(frameon=False)
    save_figure(figure, file)

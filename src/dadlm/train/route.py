"""All stages of a scale, one after the other: each in a folder of its own, one log and one plot over all. A
stage that is done is passed over, so the same command resumes a route anywhere."""

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
    """What all stages of a route share; for more, train its stages one by one."""

    data: DataConfig = field(default_factory=DataConfig)
    out: str = "runs/route"
    """Folder of the route, with one folder for each stage; an unfinished route found there is continued."""
    init_from: str | None = None
    """Model to start from, whose shape is taken: one that ships with dadlm (dadlm, bd3lm, ar), a folder or a
    training run. Stages that come before its family are left out."""
    length: float = 1.0
    """Factor on the steps of every stage."""
    batch_size: int | None = None
    """Rows per step; none: as the recipe has it."""
    accumulate: int | None = None
    """Micro-batches per step and process; none: as the recipe has it."""
    seed: int = 0
    """Decides initial weights, data order, noise and dropout."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 on CUDA, fp32 elsewhere."""
    device: str = "auto"
    """auto: CUDA if there is one."""
    compile: bool = False
    """Fuse the model's parts with torch.compile: slow to start, faster afterwards."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Under torchrun: every process has a copy of everything (ddp) or its share of it (fsdp)."""

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
    """The stages that may follow a model, in its shape; if it is gone, those of a route that was begun."""
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
    """What the route changes in a stage's way of training."""
    lengths = {name: round(getattr(run.train, name) * route.length) for name in ("steps", "decay", "warmup")}
    lengths["steps"] = max(1, lengths["steps"])
    same = ("seed", "precision", "device", "compile", "parallel")
    chosen = {name: getattr(route, name) for name in ("batch_size", "accumulate")}
    given = {name: value for name, value in chosen.items() if value is not None}
    return lengths | given | {name: getattr(route, name) for name in same}


def train_route(stages: Sequence[RunConfig], out: str | Path, *, quiet: bool = False) -> list[Finished]:
    """Train the stages, or resume them where they were interrupted; how each ended that was begun."""
    done = []
    with joined(stages[0].train) as ranks:  # once: the processes find each other only then
        for run in stages:
            done.append(train_stage(run, ranks, quiet=quiet))
            if ranks.first:
                write_log(stages, Path(out))
            if done[-1].interrupted:
                break
    return done


def write_log(stages: Sequence[RunConfig], out: Path) -> None:
    """`metrics.jsonl` of all stages in one, made anew from theirs, and its plot."""
    entries = list(_entries(stages))
    text = "".join(json.dumps(entry) + "\n" for entry in entries)
    (out / "metrics.jsonl").write_text(text, encoding="utf-8")
    try:
        _draw(entries, out / "route.svg")
    except ConfigError:  # without matplotlib, which comes with the extra `figures`, there is no plot
        return


def _entries(stages: Sequence[RunConfig]) -> Iterator[dict[str, Any]]:
    """Every line of the stages' logs with the stage it is of; `route_step` counts on over all of them."""
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

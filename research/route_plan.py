"""Ways to train a block-diffusion model, as data: where each starts, for how long, and how."""

from dataclasses import dataclass, field
from typing import Any

from dadlm.model.config import Family


@dataclass(frozen=True, kw_only=True)
class Route:
    seconds: float
    """Of the device."""
    steps: int | None = None
    """As many as take so long alone; none: found out before the run."""
    family: Family = "bd3lm"
    after: str | None = None
    """The run whose averaged weights it starts from, or a model that ships; none: from scratch."""
    decay: float = 0.5
    """Last share of the steps, over which the rate falls to zero."""
    model: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    noise: dict[str, Any] = field(default_factory=dict)
    only: str = ""
    """How the names of the weights begin that are trained; the others stay as they are."""


_EVEN: dict[str, Any] = {"even": True}
_MUON: dict[str, Any] = {"optimizer": "muon"}
_TWICE: dict[str, Any] = {"masks_per_row": 2, "batch_size": 16}
_JOINT: dict[str, Any] = {"causal_context": True}


def routes() -> dict[str, Route]:
    """By name, with the block size behind it. `start-…`: where to start from. The others go on from the BD3LM
    that ships (N = 16, trained for 23,000 steps) or from AR (N = 4). `more-…`: AR itself for as long."""
    plans = {
        "more-ar": Route(seconds=20, family="ar", after="ar"),
        "more-ar-muon": Route(seconds=20, family="ar", after="ar", train=_MUON),
        "start-mdlm": Route(seconds=10, family="mdlm", decay=0),
        "start-four": Route(seconds=10, after="ar", model={"block_size": 4}, decay=0),
        "start-after-four-16": Route(seconds=10, after="start-four", model={"block_size": 16}),
    }
    for N in (16, 4):
        at = {"block_size": N}
        starts = {
            "ar": Route(seconds=20, after="ar", model=at),
            "ar-muon": Route(seconds=20, after="ar", model=at, train=_MUON),
            "scratch": Route(seconds=20, model=at),
            "after-mdlm": Route(seconds=10, after="start-mdlm", model=at),
            "joint": Route(seconds=20, after="ar", model=at | _JOINT, train={"ar_weight": 1.0}),
            "joint-light": Route(seconds=20, after="ar", model=at | _JOINT, train={"ar_weight": 3.0}),
        }
        plans |= {f"start-{name}-{N}": route for name, route in starts.items()}
        ways: dict[str, dict[str, Any]] = {
            "plain": {},
            "even": {"noise": _EVEN},
            "clipped": {"noise": {"clip_search": True}},
            "lr-2": {"train": {"lr": 2e-3}},
            "muon": {"train": _MUON},
            "muon-lr-2": {"train": _MUON | {"lr": 2e-3}},
            "muon-even": {"train": _MUON, "noise": _EVEN},
            "twice": {"train": _TWICE},
            "four-times": {"train": {"masks_per_row": 4, "batch_size": 8}},
            "rows-128": {"train": {"batch_size": 128}},
            "all": {"train": _MUON | _TWICE, "noise": _EVEN},
        }
        origin = "bd3lm" if N == 16 else "ar"
        for name, changes in ways.items():
            plans[f"{name}-{N}"] = Route(seconds=20, after=origin, model=at, **changes)
    return plans | long_routes()


def long_routes() -> dict[str, Route]:
    """The best way for longer: from AR to BD3LM, and from there BD3LM and DA-DLM in equal seconds; AR itself.

    DA-DLM takes half the rows a step: its candidates part with the number of steps. `fixed-…`: a finished
    model to which edges are added, and nothing but the edges is trained.
    """

    def run(
        after: str,
        seconds: float,
        steps: int,
        model: dict[str, Any],
        family: Family = "bd3lm",
        decay: float = 0.5,
        rows: int = 32,
        only: str = "",
    ) -> Route:
        train = {"batch_size": rows, "ema": 0.999}
        how = {"family": family, "decay": decay, "model": model, "train": train, "noise": _EVEN}
        return Route(after=after, seconds=seconds, steps=steps, only=only, **how)

    large, edge = {"block_size": 16}, {"block_size": 16, "edge": "bilinear"}
    return {
        "base-16": run("ar", 110, 3_370, large, decay=0, rows=64),
        "bd3lm-16": run("base-16", 95, 2_910, large, rows=64),
        "graph-16": run("base-16", 95, 3_600, large, "dadlm"),
        "fixed-bd3lm-16": run("bd3lm-16", 12, 1_200, edge, only="head.edge."),
        "fixed-graph-16": run("graph-16", 15, 1_000, edge, "dadlm", only="head.edge."),
        "bd3lm-4": run("ar", 55, 1_580, {"block_size": 4}, rows=64),
        "long-ar": run("ar", 45, 2_650, {}, "ar", rows=64),
    }

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
EDGE = "head.edge."


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
    """The models that ship, trained on for equal seconds; then edges for them, while nothing else is trained.

    DA-DLM takes half the rows a step: its candidates part with the number of steps. A quarter of the blocks
    that edges learn from are masked whole: few passes are what they are for.
    """
    at, edge = {"block_size": 16}, {"block_size": 16, "edge": "bilinear"}
    plans: dict[str, Route] = {}
    for family, name, rows in (("bd3lm", "bd3lm", 64), ("dadlm", "dadlm", 32)):
        how: dict[str, Any] = {"family": family, "train": {"batch_size": rows, "ema": 0.999}}
        plans[f"longer-{name}"] = Route(seconds=72, after=name, decay=0.6, model=at, noise=_EVEN, **how)
        how |= {"noise": _EVEN | {"full_share": 0.25}, "only": EDGE}
        plans[f"longer-{name}-edges"] = Route(seconds=9, after=f"longer-{name}", model=edge, **how)
    return plans

"""The runs of the study, as data: what each trains, for how long, on which run it stands, what it is for.

Everything that tables need to know of a run is a field here and in its result file; its name is only a key.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dadlm.model.config import Family

WIKIPEDIA, WIKINEWS = "Wikipedia", "Wikinews"
SIZES = (16, 8, 4)
# Steps of the last stage: the paper's share (40% of the block-wise 15%), and a larger one. In smaller blocks
# fewer tokens are masked beside each other, and the gap opens more slowly.
SHORT, LONG = 1_200, {16: 4_000, 8: 5_000, 4: 5_000}
# What a step of DA-DLM costs in steps of BD3LM, N = 16, K = 4 (`dadlm bench train --scale lab`). Faster
# kernels have since made it 1.44; the matched runs keep what they were trained with, to BD3LM's advantage.
COST = 1.55

# Milliseconds of a training step on an H200, to give runs equal device-seconds: of N = 16 and of N = 4; N = 8
# lies between (`dadlm bench train --scale lab`; those with edges were timed by the same function).
STEP_MS = {
    "plain": (17.55, 18.79),
    "graph": (26.43, 27.90),
    "edges": (18.39, 19.31),
    "both": (27.73, 29.14),
    "joint": (19.54, 20.90),
}
# Seconds of a start from the shipped AR model, and of each variant after it.
SECONDS = {16: (140, 45), 8: (40, 30), 4: (40, 30)}

Role = Literal["base", "final", "probe", "ablation", "edges"]
Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Run:
    family: Family
    steps: int
    after: str | None = None
    """The run whose averaged weights it starts from."""
    start: str | None = None
    """The shipped model that it starts from instead."""
    decay: int = 0
    model: dict[str, Any] = field(default_factory=dict)
    """Changes to the model of the lab recipe."""
    train: dict[str, Any] = field(default_factory=dict)
    """Changes to its training settings."""
    role: Role = "final"
    """base: others start from it; probe: how fast candidates specialise; ablation: one setting is changed;
    edges: graph and token edges from the same start, in equal device-seconds."""
    text: str = WIKIPEDIA
    length: Literal["short", "long"] = "short"
    """Of the last stage."""
    matched: bool = False
    """A BD3LM with as many more steps as a DA-DLM of this length costs."""

    @property
    def block_size(self) -> int | None:
        return self.model.get("block_size", 16) if self.family in ("bd3lm", "dadlm") else None

    @property
    def changes(self) -> dict[str, Any]:
        """Settings other than the recipe's, but for those that all compared runs share."""
        shared = ("block_size", "valid_every", "valid_rows", "ema")
        return {key: value for key, value in (self.model | self.train).items() if key not in shared}

    @property
    def facts(self) -> dict[str, Any]:
        """What its result file says of it, beside what was measured."""
        names = ("family", "after", "start", "role", "text", "block_size", "length", "matched", "changes")
        return {name: getattr(self, name) for name in names}


PROBES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default": ({}, {}),
    "offset-2": ({"candidate_offset": 2.0}, {}),
    "track-5": ({"track_bias": 5.0}, {}),
    "graph-lr-5": ({}, {"graph_lr_scale": 5.0}),
    "gated": ({"transition": "gated"}, {}),
    "eight": ({"candidates": 8}, {}),
    "input": ({"expand_at": 0, "candidate_scale": 0.02}, {}),
    "lr-2": ({}, {"lr": 2e-3}),
}
ABLATIONS: dict[str, dict[str, Any]] = {
    "expand-0": {"expand_at": 0, "candidate_scale": 0.02},
    "expand-2": {"expand_at": 2},
    "k2": {"candidates": 2},
    "k8": {"candidates": 8},
    "gated": {"transition": "gated"},
    "no-track": {"track_bias": None},
    "no-offset": {"candidate_offset": None},
}


def plan() -> dict[str, Run]:
    """By name. MDLM takes 85% of 20,000 steps, the block-wise stages the rest, as in the paper."""
    runs = {
        "mdlm-base": Run(family="mdlm", steps=17_000, role="base"),
        "mdlm": Run(family="mdlm", steps=3_000, after="mdlm-base", decay=600),
        "ar-base": Run(family="ar", steps=8_000, role="base"),
        "ar-half": Run(
            family="ar", steps=2_000, after="ar-base", decay=600
        ),  # half the steps, as in the paper
        "ar": Run(family="ar", steps=12_000, after="ar-base", decay=2_000, length="long"),
    }
    for N in SIZES:
        runs |= _blockwise(N)
    for name, (model, train) in PROBES.items():
        often = {"valid_every": 50, "valid_rows": 64, "ema": 0.99, **train}
        runs[f"probe-{name}"] = Run(
            family="dadlm", steps=300, after="base-16", model=model, train=often, role="probe"
        )
    for name, model in ABLATIONS.items():
        runs[f"dadlm-16-{name}"] = replace(_last("dadlm", SHORT, 16, **model), role="ablation")
    usual = runs["dadlm-16"]
    runs["dadlm-16-falling"] = replace(usual, train={**usual.train, "decay": SHORT}, role="ablation")
    runs |= {f"news-{name}": _short_rows(run) for name, run in _news().items()}
    for N in SIZES:
        runs |= _edges(N)
    return runs


def steps_in(seconds: float, variant: str, N: int) -> int:
    """Training steps that a variant makes in so many seconds of the device."""
    large, small = STEP_MS[variant]
    ms = {16: large, 8: (large + small) / 2, 4: small}[N]
    return round(seconds * 1e3 / ms)


def _edges(N: int) -> dict[str, Run]:
    """BD3LM from the shipped AR model, and from there BD3LM, DA-DLM, BD3LM with edges, DA-DLM with edges; for
    the largest block also a start that stays an AR model."""
    first, last = SECONDS[N]

    def start(variant: str, **changes: Any) -> Run:
        model = {"block_size": N} | changes.pop("model", {})
        run = Run(family="bd3lm", steps=steps_in(first, variant, N), start="ar", model=model, role="edges")
        return replace(run, train=changes)

    runs = {f"start-{N}": start("plain")}
    if max(SIZES) == N:
        joint = start("joint", model={"causal_context": True}, ar_weight=1.0)
        runs[f"start-{N}-joint"] = replace(joint, steps=joint.steps // 4)
    for variant in ("plain", "graph", "edges", "both"):
        steps = steps_in(last, variant, N)
        edge = {"edge": "bilinear"} if variant in ("edges", "both") else {}
        family: Family = "dadlm" if variant in ("graph", "both") else "bd3lm"
        run = Run(family=family, steps=steps, after=f"start-{N}", decay=steps // 3, role="edges")
        often = {"valid_every": 200, "valid_rows": 128}
        runs[f"{variant}-{N}"] = replace(run, model={"block_size": N} | edge, train=often)
    return runs


def pairs(text: str = WIKIPEDIA) -> list[Pair]:
    """DA-DLM and the BD3LM of equal steps, short runs and large blocks first; then those of equal compute."""
    runs = {name: run for name, run in plan().items() if run.role == "final" and run.text == text}

    def of(family: Family, matched: bool = False) -> dict[tuple[str, int], str]:
        chosen = {name: run for name, run in runs.items() if (run.family, run.matched) == (family, matched)}
        return {(run.length, run.block_size or 0): name for name, run in chosen.items()}

    ours = of("dadlm")
    order = sorted(ours, key=lambda key: (key[0] == "long", -key[1]))
    return [
        (ours[key], theirs[key])
        for theirs in (of("bd3lm"), of("bd3lm", matched=True))
        for key in order
        if key in theirs
    ]


def _blockwise(N: int) -> dict[str, Run]:
    base = Run(family="bd3lm", steps=1_800, after="mdlm-base", model={"block_size": N}, role="base")
    runs = {f"base-{N}": base}
    for family in ("bd3lm", "dadlm"):
        runs[f"{family}-{N}"] = _last(family, SHORT, N)
        runs[f"{family}-{N}-long"] = replace(_last(family, LONG[N], N), length="long")
    if N == 16:
        more = replace(_last("bd3lm", round(SHORT * COST), N), matched=True)
        runs["bd3lm-16-matched"] = more
        more = replace(_last("bd3lm", round(LONG[N] * COST), N), matched=True, length="long")
        runs["bd3lm-16-long-matched"] = more
    return runs


def _news() -> dict[str, Run]:
    """Short news text at context 128: the paper's LM1B column. Little text, so fewer steps."""
    runs = {
        "mdlm-base": Run(family="mdlm", steps=4_000, role="base"),
        "mdlm": Run(family="mdlm", steps=1_200, after="mdlm-base", decay=400),
    }
    for N in SIZES:
        base = Run(family="bd3lm", steps=400, after="mdlm-base", model={"block_size": N}, role="base")
        runs[f"base-{N}"] = base
        for family in ("bd3lm", "dadlm"):
            runs[f"{family}-{N}"] = _last(family, SHORT, N)
    return runs


def _short_rows(run: Run) -> Run:
    """As many tokens a step in rows of 128."""
    return replace(
        run,
        after=None if run.after is None else f"news-{run.after}",
        model={**run.model, "context": 128},
        train={**run.train, "batch_size": 256, "valid_rows": 1024},
        text=WIKINEWS,
    )


def _last(family: Family, steps: int, N: int, **model: Any) -> Run:
    """A final stage: the learning rate falls to zero over its last third or quarter."""
    return Run(
        family=family,
        steps=steps,
        after=f"base-{N}",
        decay=steps // 3 if steps <= SHORT else steps // 4,
        model={"block_size": N, **model},
        train={"valid_every": 200},
    )

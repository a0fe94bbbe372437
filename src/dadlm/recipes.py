"""Complete runs by name, `SCALE-FAMILY`, at every scale (`ABOUT`). Each is a function that returns plain
settings.

At the paper's scales BD3LM also has the budgets of the baselines: `SCALE-bd3lm-150k`, `paper-bd3lm-300k`.
`SCALE-bd3lm` is the stage before DA-DLM.

`route` gives all stages of a scale in their order; `finetune` is the recipe of `dadlm finetune`, for models
of any scale.
"""

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from dadlm.errors import ConfigError
from dadlm.model import ModelConfig
from dadlm.model.config import Family
from dadlm.noise import NoiseConfig
from dadlm.train import DataConfig, FinetuneConfig, RouteConfig, RunConfig, TrainConfig

_Fields = dict[str, Any]
FAMILIES: tuple[Family, ...] = ("ar", "mdlm", "bd3lm", "dadlm")

# What makes the candidates diverge at once (docs/experiments.md). The paper's equations alone: None and None.
APART: _Fields = {"track_bias": 3.0, "candidate_offset": 1.0}
_LATE: _Fields = {"candidate_scale": 0.3, **APART}  # where candidates enter at a later layer


def _papers_noise(family: Family) -> NoiseConfig:
    """BD3LM with its authors' clipped schedule."""
    return NoiseConfig(clip_search=family == "bd3lm")


def _noise(family: Family) -> NoiseConfig:
    """Even numbers of masks, with which DA-DLM learns more in as many steps (docs/experiments.md)."""
    return NoiseConfig(even=family in ("bd3lm", "dadlm"))


def tour(family: Family) -> RunConfig:
    """Two layers on the tour's language: BD3LM first, then BD3LM and DA-DLM side by side."""
    shape: _Fields = {"vocab_size": 34, "eot_id": 32, "context": 32, "block_size": 4, "layers": 2}
    train: _Fields = {"lr": 3e-3, "warmup": 20, "decay": 300, "ema": 0.99, "valid_every": 100}
    return RunConfig(
        model=ModelConfig(family=family, **shape, width=64, heads=2, track_bias=4.0, candidate_offset=1.0),
        train=TrainConfig(steps=800, batch_size=32, **train, valid_rows=256, save_every=1000),
        out=f"runs/tour-{family}",
    )


def small(family: Family) -> RunConfig:
    """A text file on a CPU: about 1M parameters and context 128."""
    shape: _Fields = {"vocab_size": 1025, "eot_id": 0, "block_size": 8, "layers": 4, "width": 128}
    steps = {"ar": 500, "mdlm": 1000, "bd3lm": 450, "dadlm": 300}[family]
    train: _Fields = {"lr": 2e-3, "warmup": 40, "ema": 0.99, "valid_every": 100, "valid_rows": 64}
    return RunConfig(
        model=ModelConfig(family=family, **shape, context=128, heads=4, expand_at=2, **_LATE),
        data=DataConfig(tokenizer="bpe:1024"),
        noise=_noise(family),
        train=TrainConfig(steps=steps, batch_size=16, **train),
        out=f"runs/small-{family}",
    )


def lab(family: Family) -> RunConfig:
    """About 10M parameters at context 1024, for one GPU; late expansion."""
    shape: _Fields = {"vocab_size": 8193, "eot_id": 0, "block_size": 16, "layers": 6, "width": 320}
    steps = {"ar": 20_000, "mdlm": 17_000, "bd3lm": 10_000, "dadlm": 5_000}[family]
    return RunConfig(
        model=ModelConfig(family=family, **shape, context=1024, heads=5, expand_at=4, **_LATE),
        data=DataConfig(tokenizer="bpe:8192"),
        noise=_noise(family),
        train=TrainConfig(steps=steps, batch_size=32, lr=1e-3, warmup=500, ema=0.999),
        out=f"runs/lab-{family}",
    )


def paper(family: Family) -> RunConfig:
    """The paper's network, GPT-2 vocabulary and schedule: MDLM 850k steps, BD3LM 90k, DA-DLM 60k. AR has
    the network of BD3LM's authors for it."""
    shape: _Fields = {"tie_embedding": False, "dropout": 0.1, "transition": "gated"}
    shape["architecture"] = "bd3lm-ar" if family == "ar" else "bd3lm"
    steps = {"ar": 500_000, "mdlm": 850_000, "bd3lm": 90_000, "dadlm": 60_000}[family]
    every: _Fields = {"valid_every": 10_000, "save_every": 5_000, "log_every": 100}
    return RunConfig(
        model=ModelConfig(family=family, **shape, **APART),
        data=DataConfig(train="hf:Skylion007/openwebtext", tokenizer="gpt2"),
        noise=_papers_noise(family),
        train=TrainConfig(steps=steps, batch_size=512, accumulate=16, warmup=2500, **every),
        out=f"runs/paper-{family}",
    )


def lm1b(family: Family) -> RunConfig:
    """The paper's other text, by the same procedure: shorter rows, so fewer micro-batches."""
    run = paper(family)
    return replace(
        run,
        model=replace(run.model, context=128),
        data=replace(run.data, train="hf:dvruette/lm1b"),
        train=replace(run.train, accumulate=2),
        out=f"runs/lm1b-{family}",
    )


def finetune(**changes: Any) -> FinetuneConfig:
    """Fifteen epochs of 17,000 pairs, at a lower learning rate than in training, decaying to zero."""
    every: _Fields = {"valid_every": 500, "save_every": 500}
    rate: _Fields = {"lr": 5e-4, "warmup": 100, "decay": 2000, "ema": 0.99}
    train = TrainConfig(steps=4000, batch_size=64, masks_per_row=4, **rate, **every)
    return FinetuneConfig(**({"train": train, "rouge_pairs": 256} | changes))


_SCALES: dict[str, Callable[[Family], RunConfig]] = {
    "tour": tour,
    "small": small,
    "lab": lab,
    "paper": paper,
    "lm1b": lm1b,
}
_LONGER = {  # BD3LM with as many steps as DA-DLM, and with as much compute
    "paper-bd3lm-150k": 150_000,
    "paper-bd3lm-300k": 300_000,
    "lm1b-bd3lm-150k": 150_000,
}
ABOUT = {
    "tour": "a made-up language, a minute on a CPU",
    "small": "a text file, 1M parameters, minutes on a CPU",
    "lab": "10M parameters, minutes on one GPU",
    "paper": "the paper's size and schedule, OpenWebText",
    "lm1b": "the paper's size, LM1B, rows of 128 tokens",
}
"""What each scale is for."""
RECIPES: tuple[str, ...] = tuple(f"{scale}-{family}" for scale in _SCALES for family in FAMILIES)
RECIPES += tuple(_LONGER)
# The stages of a scale, in order. A block-diffusion model learns much sooner from AR than from MDLM
# (docs/experiments.md); `paper` keeps the paper's order.
ROUTES: dict[str, tuple[Family, ...]] = {
    "small": ("ar", "bd3lm", "dadlm"),
    "lab": ("ar", "bd3lm", "dadlm"),
    "paper": ("mdlm", "bd3lm", "dadlm"),
}


def recipe(name: str, **changes) -> RunConfig:
    """The run called SCALE-FAMILY, or SCALE-FAMILY-STEPS, with top-level fields replaced."""
    if name not in RECIPES:
        routes = f"or a route, which is all stages in one: {', '.join(ROUTES)}"
        near = get_close_matches(name, (*RECIPES, *ROUTES), 1)
        meant = f"; did you mean {near[0]}? Choose" if near else "; choose"
        raise ConfigError(f"unknown recipe {name!r}{meant} one of {', '.join(RECIPES)}, {routes}")
    scale, family, *_ = name.split("-")
    run = _SCALES[scale](family)  # type: ignore[arg-type]
    if name in _LONGER:
        run = replace(run, train=replace(run.train, steps=_LONGER[name]), out=f"runs/{name}")
    return replace(run, **changes)


def describe(name: str) -> str:
    """A recipe or a route in one line."""
    if name in ROUTES:
        return f"{', then '.join(ROUTES[name])}: {ABOUT[name]}"
    run = recipe(name)
    return f"{run.train.steps:,} steps of {run.model.family}: {ABOUT[name.split('-')[0]]}"


def route(scale: str) -> tuple[RouteConfig, list[RunConfig]]:
    """All stages of a scale in their order, and what they share."""
    if scale not in ROUTES:
        raise ConfigError(f"unknown route {scale!r}; choose one of {', '.join(ROUTES)}")
    stages = [_SCALES[scale](family) for family in ROUTES[scale]]
    return RouteConfig(data=stages[0].data, out=f"runs/{scale}"), stages

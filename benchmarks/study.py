"""The study: every model of docs/results.md, trained from one plan.

    dadlm data prepare wiki_train.jsonl.zst --tokenizer bpe:8192 --out cache
    dadlm data prepare wiki_val.jsonl.zst --tokenizer cache/FOLDER --out cache
    python benchmarks/study.py plan
    python benchmarks/study.py train mdlm-base base-16 dadlm-16 --train cache/FOLDER --valid cache/FOLDER
    python benchmarks/study.py measure mdlm dadlm-16:bd3lm-16 ar --valid cache/FOLDER

A run starts from the averaged weights of the run it stands on, with a fresh optimiser and a short warm-up,
whatever its family: BD3LM and DA-DLM of the same length differ in the graph alone. Finished runs are left as
they are, unfinished ones go on. What a run measured on its way goes to OUT/NAME/curve.json.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from dadlm.errors import CheckpointError, DadlmError
from dadlm.evaluate import perplexity, reconstruction
from dadlm.evaluate.work import write_result
from dadlm.model import load
from dadlm.model.config import Family
from dadlm.model.network import count_parameters
from dadlm.recipes import recipe
from dadlm.tokens import Rows, Shards, Tokenizer
from dadlm.train import RunConfig, Trainer
from dadlm.train.start import fresh_model, model_from

# Steps of the last stage: the paper's share (40% of the block-wise 15%), and a larger one. In smaller blocks
# fewer tokens are masked beside each other, and the gap opens more slowly.
SHORT, LONG = 1_200, {16: 4_000, 8: 5_000, 4: 5_000}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of the plan: what it trains, for how long, and on which run it stands."""

    family: Family
    steps: int
    after: str | None = None
    decay: int = 0
    model: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    what: str = ""


def plan() -> dict[str, Run]:
    """By name. MDLM takes 85% of 20,000 steps, the block-wise stages the rest, as in the paper."""
    runs = {
        "mdlm-base": Run(family="mdlm", steps=17_000, what="the common start"),
        "mdlm": Run(family="mdlm", steps=3_000, after="mdlm-base", decay=600, what="20,000 steps in all"),
        "ar-base": Run(family="ar", steps=8_000),
        "ar-half": Run(family="ar", steps=2_000, after="ar-base", decay=600, what="half the steps (paper)"),
        "ar": Run(family="ar", steps=12_000, after="ar-base", decay=2_000, what="20,000 steps in all"),
    }
    for N in (16, 8, 4):
        runs |= _blockwise(N)
    for name, model, train in VARIANTS:
        runs[f"probe-{name}"] = Run(
            family="dadlm",
            steps=300,
            after="base-16",
            model=model,
            train={"valid_every": 50, "valid_rows": 64, "ema": 0.99, **train},
            what="what makes the candidates part",
        )
    for name, model in ABLATIONS.items():
        runs[f"dadlm-16-{name}"] = _last("dadlm", SHORT, 16, model)
    for name, train in (("fitted", {"apart_rows": 32}), ("falling", {"decay": SHORT})):
        run = runs["dadlm-16"]
        runs[f"dadlm-16-{name}"] = replace(run, train={**run.train, **train})
    return runs | {f"news-{name}": _short_rows(run) for name, run in _news().items()}


def _news() -> dict[str, Run]:
    """Short news text at context 128: the paper's LM1B column. Little text, so fewer steps."""
    runs = {
        "mdlm-base": Run(family="mdlm", steps=4_000),
        "mdlm": Run(family="mdlm", steps=1_200, after="mdlm-base", decay=400),
    }
    for N in (16, 8, 4):
        runs[f"base-{N}"] = Run(family="bd3lm", steps=400, after="mdlm-base", model={"block_size": N})
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
    )


def _blockwise(N: int) -> dict[str, Run]:
    base = Run(
        family="bd3lm", steps=1_800, after="mdlm-base", model={"block_size": N}, what="60% of the block-wise"
    )
    runs = {f"base-{N}": base}
    for family in ("bd3lm", "dadlm"):
        runs[f"{family}-{N}"] = _last(family, SHORT, N)
        runs[f"{family}-{N}-long"] = _last(family, LONG[N], N)
    if N == 16:
        for length, steps in (("", SHORT), ("-long", LONG[N])):
            more = round(steps * COST)
            runs[f"bd3lm-16{length}-matched"] = replace(
                _last("bd3lm", more, N), what="as much compute as DA-DLM"
            )
    return runs


def _last(family: Family, steps: int, N: int, model: dict[str, Any] | None = None) -> Run:
    """A final stage: the learning rate falls to zero over its last third or quarter."""
    decay = steps // 3 if steps <= SHORT else steps // 4
    return Run(
        family=family,
        steps=steps,
        after=f"base-{N}",
        decay=decay,
        model={"block_size": N, **(model or {})},
        train={"valid_every": 200},
    )


# What a step of DA-DLM costs in steps of BD3LM, N = 16, K = 4 (`dadlm bench train --scale lab`). Faster
# kernels have since made it 1.44; the matched runs keep what they were trained with, to BD3LM's advantage.
COST = 1.55

VARIANTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("default", {}, {}),
    ("fitted", {}, {"apart_rows": 32}),
    ("fitted-2", {"candidate_offset": 2.0}, {"apart_rows": 32}),
    ("fitted-4", {"candidate_offset": 4.0}, {"apart_rows": 32}),
    ("offset-2", {"candidate_offset": 2.0}, {}),
    ("track-5", {"track_bias": 5.0}, {}),
    ("graph-lr-5", {}, {"graph_lr_scale": 5.0}),
    ("gated", {"transition": "gated"}, {}),
    ("eight", {"candidates": 8}, {}),
    ("input", {"expand_at": 0, "candidate_scale": 0.02}, {}),
    ("lr-2", {}, {"lr": 2e-3}),
]
ABLATIONS: dict[str, dict[str, Any]] = {
    "expand-0": {"expand_at": 0, "candidate_scale": 0.02},
    "expand-2": {"expand_at": 2},
    "k2": {"candidates": 2},
    "k8": {"candidates": 8},
    "gated": {"transition": "gated"},
    "no-track": {"track_bias": None},
    "no-offset": {"candidate_offset": None},
}


def config_of(name: str, run: Run, out: Path, rows: int | None, **train: Any) -> RunConfig:
    """The lab recipe with the changes of the plan."""
    base = recipe(f"lab-{run.family}")
    settings = {
        "steps": run.steps,
        "decay": run.decay,
        "warmup": 500 if run.after is None else 50,
        "valid_every": 1_000,
        "save_every": run.steps,
        "log_every": 50,
        "compile": torch.cuda.is_available(),
        **run.train,
        **train,
    }
    if rows is not None:
        settings["batch_size"] = rows
    return replace(
        base,
        model=replace(base.model, **run.model),
        train=replace(base.train, **settings),
        out=str(out / name),
        init_from=None if run.after is None else str(out / run.after),
    )


def train(name: str, run: Run, options: argparse.Namespace) -> None:
    """Train one run to its end and write down what it measured on its way."""
    out = Path(options.out)
    config = config_of(name, run, out, options.rows, **({} if options.lr is None else {"lr": options.lr}))
    if options.steps is not None:
        config = replace(config, train=replace(config.train, steps=options.steps, decay=0))
    shards, valid = Shards.open(Path(options.train)), Shards.open(Path(options.valid))
    if config.init_from is None:
        model = fresh_model(config.model, Tokenizer.load(options.train), config.train.seed)
    else:
        if not (Path(config.init_from) / "last").exists():
            raise CheckpointError(f"{name} stands on {run.after}: train that first")
        model = model_from(Path(config.init_from) / "last", config.model, config.train.seed)
    torch._dynamo.reset()  # of the run before; compiled code is kept on disk
    context = config.model.context
    trainer = Trainer(
        config,
        model,
        Rows.from_shards(shards, context),
        Rows.from_shards(valid, context),
        quiet=options.quiet,
    )
    began = time.perf_counter()
    finished = trainer.run()
    seconds = time.perf_counter() - began
    entries = [json.loads(line) for line in (Path(config.out) / "metrics.jsonl").read_text().splitlines()]
    curve = [
        {
            "step": entry["step"],
            **{key[6:]: round(value, 5) for key, value in entry.items() if key[:6] == "valid_"},
        }
        for entry in entries
        if any(key.startswith("valid_") for key in entry)
    ]
    tokens = config.train.batch_size * context
    rates = [entry["tokens_per_second"] for entry in entries if "tokens_per_second" in entry]
    facts = {
        "name": name,
        "family": run.family,
        "after": run.after,
        "steps": finished.step,
        "tokens_per_step": tokens,
        "lr": config.train.lr,
        "seconds": round(seconds, 1),
        "ms_per_step": round(1000 * tokens / median(rates), 2) if rates else None,
        "parameters": count_parameters(model.config)["total"],
        "model": run.model,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "curve": curve,
    }
    (Path(config.out) / "curve.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(f"{name:24s} {finished.step} steps  {seconds:.0f} s  {curve[-1]}", flush=True)


def measure(name: str, against: str | None, options: argparse.Namespace) -> None:
    """Reconstruction (beside another run of the same block size) and perplexity of a finished run."""
    out = Path(options.out)
    models = [load(out / one / "last", options.device) for one in (name, against) if one]
    rows = Rows.from_shards(Shards.open(Path(options.valid)), models[0].config.context)
    count = min(len(rows), options.count)
    about = {"count": count, "batch_size": 64, "data": {"source": options.source}}
    results: dict[str, Any] = {"perplexity": perplexity(models[0], rows, **about)}
    if models[0].config.family != "ar":
        other = models[1] if against else None
        pair = reconstruction(models[0], rows, against=other, **about)
        results["reconstruction"] = pair
    for kind, result in results.items():
        result["model"]["name"] = name
        if against and kind == "reconstruction":
            result["against"]["name"] = against
        beside = f"-against-{against}" if against and kind == "reconstruction" else ""
        write_result(out / "measured" / f"{kind}-{name}{beside}.json", result)
        print(
            name, against or "", kind, json.dumps(result.get("difference") or result.get("nll")), flush=True
        )


def show(runs: dict[str, Run]) -> None:
    for name, run in runs.items():
        changes = ", ".join(f"{key} {value}" for key, value in (run.model | run.train).items())
        print(f"{name:22s} {run.family:6s} {run.steps:6d} steps after {run.after or 'nothing':10s} {changes}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", choices=("plan", "train", "measure"))
    parser.add_argument(
        "names", nargs="*", help="runs of the plan in order; to measure: NAME or NAME:AGAINST"
    )
    parser.add_argument("--train", help="folder of token shards to learn from")
    parser.add_argument("--valid", help="folder of token shards to validate on")
    parser.add_argument("--out", default="runs/study")
    parser.add_argument("--rows", type=int, help="rows of 1,024 tokens per step (32)")
    parser.add_argument("--steps", type=int, help="stop after so many steps: to try things out")
    parser.add_argument("--lr", type=float, help="another learning rate than the recipe's")
    parser.add_argument("--source", default="wiki2015_val.jsonl.zst", help="what tables call the valid text")
    parser.add_argument("--count", type=int, default=512, help="rows to measure on")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args()
    runs = plan()
    if options.command == "plan":
        show(runs)
        return 0
    try:
        for name in options.names:
            if options.command == "measure":
                first, _, second = name.partition(":")
                measure(first, second or None, options)
                continue
            if name not in runs:
                raise CheckpointError(f"no run {name} in the plan; `plan` lists them")
            train(name, runs[name], options)
    except DadlmError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The study: every model of docs/results.md, trained and measured by one plan (`plan.py`).

    dadlm data prepare wiki_train.jsonl.zst --tokenizer bpe:8192 --out cache
    dadlm data prepare wiki_val.jsonl.zst --tokenizer cache/FOLDER --out cache
    python -m research.study plan
    python -m research.study train mdlm-base base-16 dadlm-16 --train cache/FOLDER --valid cache/FOLDER
    python -m research.study measure mdlm dadlm-16:bd3lm-16 ar --valid cache/FOLDER

A run starts from the averaged weights of the run before it, with a fresh optimiser and a short warm-up,
whatever its family: BD3LM and DA-DLM of the same length differ in the graph alone. Finished runs are left as
they are, unfinished ones are resumed. The curve of a run goes to OUT/NAME/curve.json when it is finished.
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from dadlm.errors import CheckpointError, DadlmError
from dadlm.evaluate import perplexity, reconstruction
from dadlm.evaluate.work import write_result
from dadlm.model import load
from dadlm.model.checkpoint import count_parameters
from dadlm.model.edge import Bilinear
from dadlm.noise import NoiseConfig
from dadlm.recipes import recipe
from dadlm.tokens import Rows, Shards, Tokenizer
from dadlm.train import RunConfig, Trainer
from dadlm.train.edges import is_fresh, set_edges
from dadlm.train.trainer import fresh_model, model_from
from research.plan import Run, plan

CURVE = "curve.json"
"""Written when a run is finished."""


def config_of(name: str, run: Run, out: Path, rows: int | None, **train: Any) -> RunConfig:
    """The lab recipe with the changes of the plan; times of the whole range, as when it was made."""
    base = recipe(f"lab-{run.family}", noise=NoiseConfig())
    settings = {
        "steps": run.steps,
        "decay": run.decay,
        "warmup": 500 if run.after is None and run.start is None else 50,
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
        init_from=run.start if run.after is None else str(out / run.after / "last"),
    )


def train(name: str, run: Run, options: argparse.Namespace) -> None:
    """Train one run to its end and write its curve."""
    out = Path(options.out)
    config = config_of(name, run, out, options.rows, **({} if options.lr is None else {"lr": options.lr}))
    if options.steps is not None:
        config = replace(config, train=replace(config.train, steps=options.steps, decay=0))
    shards, valid = Shards.open(Path(options.train)), Shards.open(Path(options.valid))
    if config.init_from is None:
        model = fresh_model(config.model, Tokenizer.load(options.train), config.train.seed)
    else:
        if run.after is not None and not (out / run.after / CURVE).exists():
            raise CheckpointError(f"{name} starts from {run.after}, which is not finished: train that first")
        model = model_from(config.init_from, config.model, config.train.seed)
        if is_fresh(model):
            set_edges(model, *shipped_edges())
    torch.compiler.reset()  # of the run before; compiled code is kept on disk
    context = config.model.context
    trainer = Trainer(
        config,
        model,
        Rows.from_shards(shards, context),
        Rows.from_shards(valid, context),
        quiet=options.quiet,
    )
    before, began = trainer.state.step, time.perf_counter()
    finished = trainer.run()
    seconds = time.perf_counter() - began
    if finished.interrupted:
        print(f"{name}: stopped at step {finished.step}; the same command resumes it")
        raise SystemExit(130)
    if before == finished.step and (Path(config.out) / CURVE).exists():
        return
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
        **run.facts,
        "steps": finished.step,
        "tokens_per_step": tokens,
        "lr": config.train.lr,
        "seconds": None if before else round(seconds, 1),  # only of a run that was never resumed
        "ms_per_step": round(1000 * tokens / median(rates), 2) if rates else None,
        "parameters": count_parameters(model.config)["total"],
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "curve": curve,
    }
    (Path(config.out) / CURVE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(f"{name:24s} {finished.step} steps  {seconds:.0f} s  {curve[-1]}", flush=True)


def shipped_edges() -> tuple[torch.Tensor, torch.Tensor]:
    """Factors of first order of the token edges that ship with the package, counted on 20M tokens of the same
    text."""
    model = load("bd3lm-edges")
    edge, vocabulary = model.head.edge, model.config.mask_id
    assert isinstance(edge, Bilinear)
    return edge.left.weight.detach()[:vocabulary], edge.right.detach()[:vocabulary, : edge.ranks[0]]


def measure(name: str, against: str | None, options: argparse.Namespace) -> None:
    """Perplexity, one-pass likelihood and reconstruction (paired with another run of the same block size) of
    a finished run."""
    out = Path(options.out)
    models = [load(out / one / "last", options.device) for one in (name, against) if one]
    rows = Rows.from_shards(Shards.open(Path(options.valid)), models[0].config.context)
    count = min(len(rows), options.count)
    about = {"count": count, "batch_size": 64, "data": {"source": options.source}}
    model = models[0]
    results: dict[str, Any] = {f"perplexity-{name}": perplexity(model, rows, name=name, **about)}
    if model.config.denoises_blocks:
        results[f"one-pass-{name}"] = perplexity(model, rows, passes=1, name=name, **about)
    if model.config.family != "ar":
        pair = {"against": models[1], "names": (name, against)} if against else {"names": (name, "")}
        beside = f"-against-{against}" if against else ""
        results[f"reconstruction-{name}{beside}"] = reconstruction(model, rows, **pair, **about)
    for file, result in results.items():
        write_result(out / "measured" / f"{file}.json", result)
        print(file, json.dumps(result.get("difference") or result.get("nll")), flush=True)


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

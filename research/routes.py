"""Ways to train a block-diffusion model, each for the same seconds of the device: the table of routes.

    python -m research.routes run plain-16 muon-16 --train SHARDS --valid SHARDS --workers 3
    python -m research.routes table

A run times its own step (alone on the device: a lock is held while one trains, and the next one compiles
meanwhile) and takes as many steps as fit its seconds; validation is not counted. Its curve goes to
OUT/NAME/curve.json. A run that starts from another waits for it.
"""

import argparse
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from dadlm.model import load, save
from dadlm.noise import NoiseConfig
from dadlm.recipes import recipe
from dadlm.tokens import Rows
from dadlm.train import RunConfig, Trainer
from dadlm.train.edges import is_fresh, set_edges
from dadlm.train.trainer import fresh_model, model_from
from research.route_plan import Route, routes
from research.study import shipped_edges

_WARM, _TIMED = 12, 40  # steps before the lock, and steps that are timed


def config_of(name: str, route: Route, out: Path) -> RunConfig:
    base = recipe(f"lab-{route.family}", noise=NoiseConfig(**route.noise))
    settings = {
        "steps": 1 << 30,  # until the step has been timed
        "warmup": 500 if route.after is None else 50,
        "ema": 0.99,
        "valid_every": 1 << 29,
        "save_every": 1 << 29,
        "log_every": 50,
        "compile": torch.cuda.is_available(),
    }
    return replace(
        base,
        model=replace(base.model, **route.model),
        train=replace(base.train, **(settings | route.train)),
        out=str(out / name),
        init_from=origin_of(route, out),
    )


def origin_of(route: Route, out: Path) -> str | None:
    return str(out / route.after) if route.after and (out / route.after).exists() else route.after


def rows_of(folder: Path, context: int) -> Rows:
    """Of the shards that are there, which may be some of those of the index."""
    files = sorted(folder.glob("shard-*.bin"))
    return Rows([np.memmap(file, dtype="<u2", mode="r") for file in files], context)


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(name: str, route: Route, options: argparse.Namespace) -> None:
    """Train one route and write its model and its curve."""
    out = Path(options.out)
    config = config_of(name, route, out)
    if options.rows is not None:
        few = {"batch_size": options.rows, "valid_rows": options.rows}
        config = replace(config, train=replace(config.train, **few))
    if config.init_from is None:
        model = fresh_model(config.model, load("bd3lm").tokenizer, config.train.seed)  # type: ignore[arg-type]
    else:
        model = model_from(config.init_from, config.model, config.train.seed)
        if is_fresh(model):
            set_edges(model, *shipped_edges())
    for key, weight in model.named_parameters():
        weight.requires_grad_(key.startswith(route.only))
    rows, valid = (rows_of(Path(folder), config.model.context) for folder in (options.train, options.valid))
    trainer = Trainer(config, model, rows, valid, quiet=True)
    warm, timed = (_WARM, _TIMED) if options.steps is None else (1, 1)
    for _ in range(warm):
        trainer.step()
    _finish()
    curve: list[dict[str, float]] = []
    with alone(out / "lock"):
        began = time.perf_counter()
        for _ in range(timed):
            trainer.step()
        _finish()
        ms = (time.perf_counter() - began) * 1e3 / timed
        seconds = route.seconds * options.scale
        least = warm + timed + 1
        steps = max(least, options.steps or route.steps or warm + round(seconds * 1e3 / ms))
        train = replace(config.train, steps=steps, decay=round(steps * route.decay))
        trainer.config = replace(config, train=train)
        spent, every = time.perf_counter() - began, max(1, steps // options.points)
        while trainer.state.step < steps:
            began = time.perf_counter()
            loss = trainer.step()
            if trainer.state.step % every == 0 or trainer.state.step == steps:
                _finish()
                spent += time.perf_counter() - began
                curve.append({"step": trainer.state.step, "seconds": round(spent, 1)} | _scores(trainer))
                print(name, {"loss": round(float(loss), 4)} | curve[-1], flush=True)
                began = time.perf_counter()
            spent += time.perf_counter() - began
    with trainer.state.ema.in_place_of(trainer.weights):
        save(trainer.state.model, out / name)
    facts = {"name": name, **asdict(route), "seconds": seconds, "steps": steps, "ms_per_step": round(ms, 2)}
    settings = trainer.config.train
    facts |= {"tokens_per_step": settings.batch_size * config.model.context, "text": options.source}
    facts |= {key: getattr(settings, key) for key in ("lr", "ema", "seed")}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    facts |= {"device": device, "curve": curve}
    (out / name / "curve.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _scores(trainer: Trainer) -> dict[str, float]:
    scores, _ = trainer.score()
    found = {"loss": float(scores.reconstruction.mean()), "bound": float(scores.bound.mean())}
    if trainer.state.model.graph is not None:
        found["gap"] = scores.gap
    if len(scores.ar_nll):
        found["ar_nll"] = float(scores.ar_nll.mean())
    return {key: round(value, 4) for key, value in found.items()}


def run_all(options: argparse.Namespace) -> None:
    """Some runs at a time, in the order given, each in a process of its own."""
    plans, out = routes(), Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    waiting, running = list(options.names), dict[str, subprocess.Popen[bytes]]()
    settings = ["--train", options.train, "--valid", options.valid, "--out", options.out]
    settings += ["--scale", str(options.scale), "--points", str(options.points), "--source", options.source]
    for key in ("steps", "rows"):
        settings += [] if getattr(options, key) is None else [f"--{key}", str(getattr(options, key))]
    while waiting or running:
        for name, process in list(running.items()):
            if process.poll() is not None:
                del running[name]
                lines = (out / f"{name}.log").read_text(errors="replace").splitlines()
                print("done" if process.returncode == 0 else "FAILED", *lines[-1:], flush=True)
        for name in list(waiting):
            after = plans[name].after
            is_ready = after not in plans or (out / str(after) / "curve.json").exists()
            if not is_ready and after not in running and after not in waiting:
                print(f"{name} is left out: it begins with {after}, which is not there", flush=True)
                waiting.remove(name)
            elif is_ready and len(running) < options.workers:
                waiting.remove(name)
                command = [sys.executable, "-m", "research.routes", "one", name, *settings]
                with (out / f"{name}.log").open("wb") as log:
                    threads = {"OMP_NUM_THREADS": "2"}
                    running[name] = subprocess.Popen(
                        command, stdout=log, stderr=log, env=os.environ | threads
                    )
        time.sleep(0.2)


def table(out: Path) -> None:
    for file in sorted(out.glob("*/curve.json")):
        facts = json.loads(file.read_text(encoding="utf-8"))
        last = facts["curve"][-1]
        others = {key: value for key, value in last.items() if key not in ("step", "seconds", "loss")}
        way = f"{facts['steps']:6d} steps of {facts['ms_per_step']:6.2f} ms, {last['seconds']:6.1f} s"
        print(f"{facts['name']:22s} {way}: {last['loss']:.4f}  {others}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", choices=("run", "one", "table", "plan"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--train", default="train", help="folder of token shards to learn from")
    parser.add_argument("--valid", default="valid", help="folder of token shards to validate on")
    parser.add_argument("--out", default="runs/routes")
    parser.add_argument("--source", default="wiki2015_train.jsonl.zst", help="what a card calls the text")
    parser.add_argument("--workers", type=int, default=3, help="processes: one trains, the others compile")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the seconds of every route")
    parser.add_argument("--steps", type=int, help="so many steps instead: to try things out")
    parser.add_argument("--rows", type=int, help="of a step and of a validation: to try things out")
    parser.add_argument("--points", type=int, default=4, help="validations of a run")
    options = parser.parse_args()
    if options.command == "table":
        table(Path(options.out))
    elif options.command == "plan":
        for name, route in routes().items():
            print(name, route)
    elif options.command == "one":
        [name] = options.names
        run(name, routes()[name], options)
    else:
        run_all(options)
        table(Path(options.out))


if __name__ == "__main__":
    main()

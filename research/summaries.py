"""Summaries on real pairs: three models fine-tuned alike, decoded in several ways, compared pair by pair.

    python -m research.summaries --data news

DATA holds folders xsum, cnndm and wikinews_sum, each with train.jsonl and val.jsonl. All models learn from
the three train files together, without every 35th pair: these select the best checkpoint, threshold and
infilling; the val files are only reported. `--only FAMILY` fine-tunes one of the three and measures it on
held-out pairs; three such processes may share a GPU. Without it everything missing is made, the selected
systems are measured, single summaries are timed (so nothing else should run), and the tables are printed and
written to OUT/summaries.md; OUT/summaries.json has all numbers. Started again, it resumes where it stopped.
"""

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import torch

from dadlm import DecodeSettings, Model, generate, load
from dadlm.errors import DadlmError
from dadlm.evaluate import summarisation
from dadlm.evaluate.documents import Documents, read_documents
from dadlm.evaluate.subject import NAMES, fingerprint
from dadlm.evaluate.summarisation import lengths, prompt_of
from dadlm.model.files import write_json
from dadlm.recipes import finetune as recipe
from dadlm.serve import Finished, Request, Scheduler
from dadlm.train.finetune import finetune
from research.summaries_tables import (
    FAMILIES,
    HELD_OUT,
    RECIPE,
    SETS,
    SWEPT,
    SYSTEMS,
    System,
    choose,
    compare,
    measured_on_held_out,
    tables,
)

CHOOSE = "choose.jsonl"
VALIDATIONS = 8
REPORTED = ("steps", "ar_steps", "batch_size", "lr", "masks", "dropout", "hold_out")
"""Options that the tables report."""


def split(data: Path, out: Path, pairs: int | None, every: int) -> tuple[Path, Path]:
    """One file to learn from and one to choose by, the same whichever process writes them."""
    files = out / "train.jsonl", out / CHOOSE
    lines = []
    for name in SETS:
        lines += (data / name / "train.jsonl").read_bytes().splitlines(keepends=True)[:pairs]
    every = min(every, max(2, len(lines) // 8))
    for place, file in enumerate(files):
        some = [line for number, line in enumerate(lines) if (number % every == 0) == bool(place)]
        own = file.with_suffix(f".{os.getpid()}")
        own.write_bytes(b"".join(some))
        os.replace(own, file)
    return files


def train(family: str, options: argparse.Namespace) -> None:
    out = Path(options.out)
    steps = options.ar_steps if family == "ar" else options.steps
    learn, choose = split(Path(options.data), out, options.train_pairs, options.hold_out)
    base = recipe(model=getattr(options, family), data=(str(learn),), valid=(str(choose),))
    settings = {
        "steps": steps,
        "decay": steps // 2,
        "warmup": min(100, steps // 8),
        "batch_size": options.batch_size,
        "lr": options.lr,
        "masks_per_row": options.masks,
        "valid_every": max(1, steps // VALIDATIONS),
        "save_every": max(1, steps // VALIDATIONS),
        "device": options.device,
    }
    # No patience: all steps, however ROUGE on a few pairs falls out.
    config = replace(
        base,
        out=str(out / family),
        dropout=options.dropout,
        rouge_pairs=options.rouge_pairs,
        patience=0,
        train=replace(base.train, **settings),
    )
    start = time.perf_counter()
    done = finetune(config)
    if done.interrupted:
        print(f"stopped at step {done.step}; the same command resumes it")
        raise SystemExit(130)
    result = f"step {done.step}, best ROUGE {done.rouge:.2f} on held-out pairs at step {done.best_step}"
    print(f"{family}: {result}, {time.perf_counter() - start:.0f} s", flush=True)


def measure(system: System, name: str, model: Model, options: argparse.Namespace) -> None:
    """ROUGE of every pair of a set, in batches."""
    out = Path(options.out)
    file = out / CHOOSE if name == HELD_OUT else Path(options.data) / name / "val.jsonl"
    start = time.perf_counter()
    result = summarisation(
        model,
        read_documents(file, count=options.count),
        settings=system.settings,
        batch_size=options.decode_batch,
        name=NAMES[system.family],
        out=out / "evaluation" / system.label / name,
    )
    scores = f"ROUGE {result['average']['mean']:.2f}, {result['tpf']:.2f} tokens per pass"
    print(f"{system.label} {name}: {scores}, {time.perf_counter() - start:.0f} s", flush=True)


def measure_times(system: System, model: Model, options: argparse.Namespace) -> None:
    """Milliseconds of a single summary, the mean over pairs of all sets: by a call of `generate` of its own,
    and by a server with one row, which has its CUDA graphs from earlier requests."""
    file = Path(options.out) / "evaluation" / system.label / "times.json"
    documents = _some_documents(options)
    about = {"pairs": len(documents), "weights": fingerprint(model)}
    if file.exists() and about.items() <= json.loads(file.read_bytes()).items():
        return
    document_tokens, summary_tokens = lengths(model, None, None)
    settings = replace(system.settings, max_new_tokens=summary_tokens)
    prompts = [prompt_of(model, text, document_tokens)[0] for text in documents]
    alone, served = _alone(model, prompts, settings), _served(model, prompts, settings)
    machine = torch.cuda.get_device_name() if model.device.type == "cuda" else "CPU"
    write_json(file, about | {"alone": alone, "served": served, "machine": machine})


def _some_documents(options: argparse.Namespace) -> list[str]:
    """Evenly spaced documents of all sets, each in proportion to its size."""
    documents: list[Documents] = [
        read_documents(Path(options.data) / name / "val.jsonl", count=options.count) for name in SETS
    ]
    texts = [document for one in documents for document, _ in one.pairs]
    return texts[:: max(1, len(texts) // options.timed)][: options.timed]


def _alone(model: Model, prompts: list[list[int]], settings: DecodeSettings) -> float:
    generate(model, prompts[:1], seed=0, settings=settings)  # warm-up
    start = time.perf_counter()
    for prompt in prompts:
        generate(model, [prompt], seed=0, settings=settings)
    return 1000 * (time.perf_counter() - start) / len(prompts)


def _served(model: Model, prompts: list[list[int]], settings: DecodeSettings) -> float:
    scheduler = Scheduler(model, max_rows=1).start()
    took = []
    for prompt in [prompts[0], prompts[0], *prompts]:  # for the graphs: one launched, one captured
        start = time.perf_counter()
        events = list(scheduler.submit(Request(ids=tuple(prompt), settings=settings, seed=0)))
        took.append(1000 * (time.perf_counter() - start))
        assert isinstance(events[-1], Finished)
    scheduler.shutdown(grace=0)
    return fmean(took[2:])


def run(options: argparse.Namespace) -> None:
    out = Path(options.out)
    for family in [options.only] if options.only else FAMILIES:
        train(family, options)
        model = load(out / family, options.device)
        for system in (one for one in SYSTEMS.values() if one.family == family):
            # What is chosen by held-out pairs is measured on the others afterwards.
            for name in [HELD_OUT] if system in SWEPT else SETS:
                measure(system, name, model, options)
    if options.only:
        return
    models = {family: load(out / family, options.device) for family in FAMILIES}
    measure(System(family="ar"), HELD_OUT, models["ar"], options)
    rows = choose(measured_on_held_out(out / "evaluation")).rows
    for system in rows:
        for name in SETS:
            measure(system, name, models[system.family], options)
    for system in rows:  # last: nothing else may be at work
        measure_times(system, models[system.family], options)
    write_json(out / RECIPE, {name: getattr(options, name) for name in REPORTED})
    numbers = compare(out)
    write_json(out / "summaries.json", numbers)
    (out / "summaries.md").write_text(tables(numbers), encoding="utf-8")
    print(tables(numbers))


class _Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """The description as it is written, and every default."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Help)
    parser.add_argument("--data", required=True, help="folder with xsum, cnndm and wikinews_sum")
    for family in FAMILIES:
        parser.add_argument(f"--{family}", default=family, help="model to start from (the shipped one)")
    parser.add_argument(
        "--only", choices=FAMILIES, help="fine-tune and measure this one; no times, no tables"
    )
    parser.add_argument("--out", default="runs/summaries")
    usual = recipe().train
    parser.add_argument("--steps", type=int, default=usual.steps, help="optimiser steps of BD3LM and DA-DLM")
    parser.add_argument("--ar-steps", type=int, default=1600, help="of AR, which overfits much earlier")
    parser.add_argument("--batch-size", type=int, default=usual.batch_size, help="pairs per step")
    parser.add_argument("--decode-batch", type=int, default=256, help="pairs summarised side by side")
    parser.add_argument("--lr", type=float, default=usual.lr)
    masks = usual.masks_per_row
    parser.add_argument("--masks", type=int, default=masks, help="of a summary in a step (not AR)")
    parser.add_argument("--dropout", type=float, help="none: as the models have it")
    parser.add_argument("--hold-out", type=int, default=35, help="every so many-th pair chooses, not trains")
    parser.add_argument(
        "--rouge-pairs", type=int, default=350, help="held-out pairs summarised at a validation"
    )
    parser.add_argument("--train-pairs", type=int, help="so many of each train file: to try things out")
    parser.add_argument("--count", type=int, help="so many of each val file: to try things out")
    parser.add_argument("--timed", type=int, default=48, help="pairs timed at batch 1")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    files = [Path(options.data) / name / file for name in SETS for file in ("train.jsonl", "val.jsonl")]
    if missing := [str(file) for file in files if not file.is_file()]:
        parser.error(f"--data lacks {', '.join(missing)}")
    for name in ("steps", "ar_steps", "batch_size", "decode_batch", "masks", "rouge_pairs", "timed"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if options.hold_out < 2 or 0 in (options.train_pairs, options.count):
        parser.error("--hold-out must be at least 2; --train-pairs and --count, where given, at least 1")
    Path(options.out).mkdir(parents=True, exist_ok=True)
    try:
        run(options)
    except DadlmError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

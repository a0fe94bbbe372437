"""Open-ended generation of the study: texts made and read on a GPU, measured anywhere.

    python -m research.texts write --models bd3lm-16-long=FOLDER dadlm-16-long=FOLDER \\
        --valid SHARDS --out texts
    python -m research.texts measure texts --out research/results

`dadlm evaluate generation` does both at once and keeps every text. For a hundred configurations of a thousand
texts that is half a gigabyte; here a configuration leaves its numbers, features reduced by a PCA fitted on
the true continuations, and its first texts for a judge. The measures are the same functions. Several
processes may write into one folder, each for its own models; what exists is skipped, and a stop loses the
configuration under way at most.
"""

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dadlm.decode import generate
from dadlm.errors import DataError
from dadlm.evaluate.generation import who
from dadlm.evaluate.language_models import LanguageModel, open_language_model
from dadlm.evaluate.presets import Configuration, configurations_for
from dadlm.evaluate.samples import PromptSet, file_name, prompt_set
from dadlm.evaluate.subject import describe
from dadlm.evaluate.text import about
from dadlm.evaluate.work import whole_file
from dadlm.model import Model, load
from dadlm.tokens import Rows, Shards
from research.counts import counted
from research.plan import plan
from research.quality import COMPONENTS, TRUTH, as_array, from_array, measure, packed

KEPT = 128  # texts of a configuration that stay as they are


def write(options: argparse.Namespace) -> None:
    """Complete the prompts by every model in every configuration, and read what was written."""
    out, device = Path(options.out), options.device
    out.mkdir(parents=True, exist_ok=True)
    models = named_models(options.models, device, options.dtype)
    described = {name: describe(model, name) for name, model in models.items()}
    rows = Rows.from_shards(Shards.open(Path(options.valid)), min(m.config.context for m in models.values()))
    task = prompt_set(models, rows, None, None, options.new_tokens, options.samples, options.seed)
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    judge = open_language_model(options.judge, device, kind)
    reader = Reader(out / TRUTH, judge, task, _about(task, judge, options))
    for name, configuration in _in_turn(models, options.configurations):
        file = out / f"{file_name(name, configuration.label)}.npz"
        if not _made(file, described[name]["weights"], configuration):
            _one(file, task, models[name], described[name], configuration, reader, options.batch_size)


def _made(file: Path, weights: str, configuration: Configuration) -> bool:
    """Whether the texts of these weights and settings are there; a label does not name the defaults."""
    if not file.exists():
        return False
    with np.load(file, allow_pickle=False) as arrays:
        facts = from_array(arrays["facts"])
    if (facts["model_facts"]["weights"], facts["settings"]) != (weights, configuration.described()):
        raise DataError(f"{file} is of other weights or settings: remove it, or choose another --out")
    return True


def _in_turn(models: dict[str, Model], wanted: list[str]) -> Iterator[tuple[str, Configuration]]:
    """All models in one configuration, then in the next: whatever is there after a stop can be compared."""
    grids = [
        [(name, one) for one in configurations_for(model.config, wanted)] for name, model in models.items()
    ]
    for same in zip_longest(*grids):
        yield from (run for run in same if run is not None)


class Reader:
    """A language model that judges texts and embeds them; the first reading is of the true continuations."""

    def __init__(self, file: Path, model: LanguageModel, task: PromptSet, facts: dict[str, Any]) -> None:
        self.model = model
        if not file.exists():
            _only_once(file, {**self._truth(task), "facts": as_array(facts)})
        with np.load(file, allow_pickle=False) as arrays:
            self.mean, self.axes = arrays["mean"], arrays["axes"]
            if from_array(arrays["facts"]) != facts:
                raise DataError(f"{file.parent} holds texts of another task: choose another --out")

    def read(self, prompts: list[str], texts: list[str]) -> dict[str, np.ndarray]:
        unit, numbers = self._score(prompts, texts)
        return {"features": ((unit - self.mean) @ self.axes).astype(np.float16), **numbers}

    def _truth(self, task: PromptSet) -> dict[str, np.ndarray]:
        """How the rows really go on, and the PCA of it in which all texts are seen."""
        texts = [task.tokenizer.decode(ids) for ids in task.truth]
        unit, numbers = self._score(task.texts[: len(texts)], texts)
        mean = unit.mean(0)
        axes = np.linalg.svd(unit - mean, full_matrices=False)[2][:COMPONENTS].T
        features = ((unit - mean) @ axes).astype(np.float16)
        arrays = {**numbers, **counted(task.truth), "documents": task.documents.numpy()}
        arrays |= {"prompts": packed(task.texts[:KEPT]), "texts": packed(texts[:KEPT])}
        return {"mean": mean, "axes": axes, "features": features, **arrays}

    def _score(self, prompts: list[str], texts: list[str]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        scored = self.model.score(texts, prompts, batch_size=len(texts))
        assert scored.nll is not None and scored.tokens is not None
        unit = scored.features / np.linalg.norm(scored.features, axis=1, keepdims=True)
        return unit, {"nll": scored.nll, "judged": scored.tokens, "cut": scored.truncated}


def _only_once(file: Path, arrays: dict[str, np.ndarray]) -> None:
    """Of processes that start together one writes the file, and all read it."""
    own = file.with_name(f".{os.getpid()}-{file.name}")
    np.savez(own, allow_pickle=False, **arrays)
    with suppress(FileExistsError):
        os.link(own, file)
    own.unlink()


def _about(task: PromptSet, judge: LanguageModel, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "data": about(task.rows, options.source),
        "seed": options.seed,
        "samples": options.samples,
        "prompt_tokens": task.prompt_tokens,
        "new_tokens": task.new_tokens,
        "reader": judge.label if options.judge == "smollm2" else Path(options.judge).name,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "dtype": options.dtype,
    }


def _one(
    file: Path,
    task: PromptSet,
    model: Model,
    described: dict[str, Any],
    configuration: Configuration,
    reader: Reader,
    batch_size: int,
) -> None:
    settings = replace(configuration.settings, max_new_tokens=task.new_tokens)
    began = time.perf_counter()
    made = generate(
        model,
        [task.prompt(index) for index in task.indices],
        seed=[task.seed + index for index in task.indices],
        batch_size=batch_size,
        settings=settings,
    )
    wrote = time.perf_counter() - began
    arrays = {
        **reader.read(task.texts, made.texts),
        **counted(made.tokens, model.device),
        "forward": np.array(made.forward_passes),
        "cache": np.array(made.cache_passes),
        "empty": np.array([not text.strip() for text in made.texts]),
        "texts": packed(made.texts[:KEPT]),
    }
    facts = {
        **who(described, configuration),
        **of_run(described["name"], settings.nucleus),
        "model_facts": described,
        "write_seconds": round(wrote, 2),
        "seconds": round(time.perf_counter() - began, 2),
        "sample": {"prompt": task.texts[0], "text": made.texts[0], "seed": made.seeds[0]},
    }
    with whole_file(file) as handle:
        np.savez(handle, allow_pickle=False, facts=as_array(facts), **arrays)
    took = f"{wrote:.1f} s to write, {facts['seconds']:.1f} s in all"
    print(f"{described['name']} {configuration.label}: {took}", flush=True)


def named_models(words: list[str], device: str, dtype: str) -> dict[str, Model]:
    """NAME=FOLDER … → models by name; NAME is a run of the plan."""
    pairs = (word.partition("=") for word in words)
    return {name: load(folder or name, device, dtype) for name, _, folder in pairs}


def of_run(name: str, nucleus: str) -> dict[str, Any]:
    """What a row says of the run it is of."""
    return {"run": name, "matched": plan()[name].matched, "nucleus": nucleus}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("write")
    one.add_argument("--models", nargs="+", required=True, help="NAME=FOLDER, names as in the plan")
    one.add_argument("--valid", required=True, help="folder of token shards")
    one.add_argument("--source", default="wiki2015_val.jsonl.zst", help="what tables call that text")
    one.add_argument("--configurations", nargs="+", default=["paper"])
    one.add_argument("--samples", type=int, default=1000)
    one.add_argument("--new-tokens", type=int, help="to the end of the context")
    one.add_argument("--batch-size", type=int, default=1000, help="texts decoded side by side")
    one.add_argument("--judge", default="smollm2")
    one.add_argument("--device", default="cuda")
    one.add_argument("--dtype", default="bfloat16")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--out", required=True)
    two = commands.add_parser("measure")
    two.add_argument("folder", help="what `write` wrote")
    two.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once")
    two.add_argument("--out", default="research/results", help="has speed/ from research.speed")
    options = parser.parse_args()
    if options.command == "write":
        write(options)
    else:
        measure(Path(options.folder), Path(options.out), options.jobs)


if __name__ == "__main__":
    main()

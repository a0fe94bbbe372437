"""Open-ended generation of the study: texts made and read on a GPU, measured anywhere.

    python benchmarks/study_texts.py write --models bd3lm-16=FOLDER dadlm-16=FOLDER --valid SHARDS --out texts
    python benchmarks/study_texts.py measure texts --out benchmarks/results/study/generation.json

`dadlm evaluate generation` does both at once and keeps every text. With ninety configurations of a thousand
texts that is a gigabyte; here a configuration leaves its numbers, features reduced by a PCA fitted on the
true continuations, and its first texts. The measures are the same functions.

n texts, D features, d reduced features.
"""

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dadlm.decode import generate
from dadlm.evaluate.features import Reading
from dadlm.evaluate.generation import cost_of, who
from dadlm.evaluate.language_models import LanguageModel, open_language_model
from dadlm.evaluate.latency import time_updates
from dadlm.evaluate.pareto import draw_pareto
from dadlm.evaluate.presets import Configuration, configurations_for
from dadlm.evaluate.quality import closeness, perplexity
from dadlm.evaluate.samples import Task, file_name, task_for
from dadlm.evaluate.statistics import distinct, entropy, repetition
from dadlm.evaluate.subject import describe
from dadlm.evaluate.text import about
from dadlm.evaluate.work import write_result
from dadlm.model import Model, load
from dadlm.tokens import Rows, Shards

_COMPONENTS, _SHOWN = 128, 8


class Reader:
    """A language model that judges texts and embeds them, and the PCA of the true ones."""

    def __init__(self, model: LanguageModel, truth: np.ndarray | None = None) -> None:
        self.model, self.truth = model, truth

    def read(self, prompts: list[str], texts: list[str]) -> dict[str, np.ndarray]:
        scored = self.model.score(texts, prompts, batch_size=64)
        assert scored.nll is not None and scored.tokens is not None
        unit = scored.features / np.linalg.norm(scored.features, axis=1, keepdims=True)
        if self.truth is None:
            self.mean = unit.mean(0)
            _, _, axes = np.linalg.svd(unit - self.mean, full_matrices=False)
            self.axes, self.truth = axes[:_COMPONENTS].T, unit
        features = ((unit - self.mean) @ self.axes).astype(np.float16)
        return {"features": features, "nll": scored.nll, "judged": scored.tokens, "cut": scored.cut}


def write(options: argparse.Namespace) -> None:
    """Complete the prompts by every model in every configuration; a file each, what exists is left alone."""
    out, device = Path(options.out), options.device
    out.mkdir(parents=True, exist_ok=True)
    models = {name: load(folder, device, options.dtype) for name, folder in map(_named, options.models)}
    rows = Rows.from_shards(Shards.open(Path(options.valid)), min(m.config.context for m in models.values()))
    task = task_for(models, rows, None, None, options.new_tokens, options.samples, options.seed)
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    reader = Reader(open_language_model(options.judge, device, kind))
    texts = [task.tokenizer.decode(ids) for ids in task.truth]
    true = {**reader.read(task.prompts[: len(texts)], texts), **_counted(task.truth)}
    np.savez(out / "truth.npz", documents=task.documents.numpy(), **true)
    for name, model in models.items():
        for configuration in configurations_for(model.config, options.configurations):
            if not (out / f"{file_name(name, configuration.label)}.npz").exists():
                _one(out, task, name, model, configuration, reader, options.batch_size)
    if options.times:
        times = {name: step_ms(model, task) for name, model in models.items()}
        (out / f"times-{file_name(*models)}.json").write_text(json.dumps(times), encoding="utf-8")
    (out / "about.json").write_text(
        json.dumps(
            {
                "data": about(rows),
                "seed": options.seed,
                "samples": options.samples,
                "prompt_tokens": task.prompt_tokens,
                "new_tokens": task.new_tokens,
                "reader": reader.model.label if options.judge == "smollm2" else Path(options.judge).name,
                "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
                "dtype": options.dtype,
            }
        ),
        encoding="utf-8",
    )


def _one(
    out: Path,
    task: Task,
    name: str,
    model: Model,
    configuration: Configuration,
    reader: Reader,
    batch_size: int,
) -> None:
    began = time.perf_counter()
    made = generate(
        model,
        [task.prompt(index) for index in task.indices],
        seed=[task.seed + index for index in task.indices],
        batch_size=batch_size,
        settings=replace(configuration.settings, max_new_tokens=task.new_tokens),
    )
    wrote = time.perf_counter() - began
    arrays = {
        **reader.read(task.prompts, made.texts),
        **_counted(made.tokens),
        "forward": np.array(made.forward_passes),
        "cache": np.array(made.cache_passes),
        "empty": np.array([not text.strip() for text in made.texts]),
    }
    facts = {
        **who(describe(model, name), configuration),
        "model_facts": describe(model, name),
        "write_seconds": round(wrote, 2),
        "seconds": round(time.perf_counter() - began, 2),
        "texts": [
            {"prompt": prompt, "text": text, "seed": seed}
            for prompt, text, seed in list(zip(task.prompts, made.texts, made.seeds, strict=True))[:_SHOWN]
        ],
    }
    file = out / file_name(name, configuration.label)
    file.with_suffix(file.suffix + ".json").write_text(json.dumps(facts), encoding="utf-8")
    np.savez(f"{file}.npz", **arrays)
    print(
        f"{name} {configuration.label}: {wrote:.1f} s to write, {facts['seconds']:.1f} s in all", flush=True
    )


def _counted(tokens: list[list[int]]) -> dict[str, np.ndarray]:
    statistics_ = [distinct(tokens, n) for n in (1, 2, 3)]
    return {
        "tokens": np.array([len(ids) for ids in tokens]),
        "distinct": np.array(statistics_),
        "entropy": np.array(entropy(tokens)),
        "repetition": np.array(repetition(tokens)),
    }


def step_ms(model: Model, task: Task, batch_size: int = 32) -> float | None:
    """Median of first-hitting updates, the paper's protocol."""
    prompts = [task.prompt(index) for index in range(batch_size)]
    (settings,) = (one.settings for one in configurations_for(model.config, ["FH"]))
    times = [
        ms for _ in range(3) for ms in time_updates(model, prompts, settings, steps=10, warmup=10, seed=0)
    ]
    return statistics.median(times) if times else None


def measure(options: argparse.Namespace) -> None:
    """What the files of `write` say, in the form of `dadlm evaluate generation`."""
    folder = Path(options.folder)
    facts = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    times: dict[str, float] = {}
    for file in folder.glob("times-*.json"):
        times |= json.loads(file.read_text(encoding="utf-8"))
    truth = np.load(folder / "truth.npz", allow_pickle=False)
    documents = torch.from_numpy(truth["documents"])
    lines, models, samples = [], {}, []
    for file in sorted(folder.glob("*.npz")):
        if file.name == "truth.npz":
            continue
        known = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
        arrays = np.load(file, allow_pickle=False)
        models[known["model"]] = known.pop("model_facts")
        samples.append(
            {key: known[key] for key in ("model", "configuration")} | {"texts": known.pop("texts")}
        )
        base = next((one for one in times if one == f"bd3lm-{known['block_size']}"), None)
        faster = times[base] / times[known["model"]] if base and known["model"] in times else None
        made = [
            {"tokens": range(tokens), "forward_passes": int(forward), "cache_passes": int(cache)}
            for tokens, forward, cache in zip(
                arrays["tokens"], arrays["forward"], arrays["cache"], strict=True
            )
        ]
        lines.append(
            {
                **known,
                "samples": len(made),
                "mauve": closeness(_reading(truth), _reading(arrays), facts["seed"]),
                **_measured(arrays, documents),
                **cost_of(made, documents, faster),
                "ms_per_step": times.get(known["model"]),
                "empty": int(arrays["empty"].sum()),
            }
        )
        print(f"{known['model']} {known['configuration']}", flush=True)
    result = {
        "kind": "generation",
        **facts,
        "models": list(models.values()),
        "embedder": f"{facts['reader']}, first {_COMPONENTS} components of the true texts",
        "judge_lm": facts["reader"],
        "latency": {
            name: {"ms_median": ms, "batch_size": 32, "device": facts["device"]} for name, ms in times.items()
        },
        "reference": _measured(truth, documents[: len(truth["nll"])]),
        "rows": lines,
        "notes": [
            "MAUVE from features of a small language model, not the paper's GPT-2-Large: compare rows here.",
            "Adjusted TPF by the time of first-hitting steps at batch 32, as in the paper.",
        ],
    }
    out = Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_result(out, result)
    out.with_name(f"{out.stem}-samples.json").write_text(
        json.dumps(samples, ensure_ascii=False, indent=1), "utf-8"
    )
    draw_pareto(result, out.with_suffix(""))


def _reading(arrays: Any) -> Reading:
    return Reading(arrays["features"].astype(np.float32), arrays["nll"], arrays["judged"], arrays["cut"])


def _measured(arrays: Any, documents: torch.Tensor) -> dict[str, Any]:
    return {
        "judge_perplexity": perplexity(_reading(arrays), documents),
        "distinct": {str(n): float(value) for n, value in zip((1, 2, 3), arrays["distinct"], strict=True)},
        "entropy": float(arrays["entropy"]),
        "repetition": float(arrays["repetition"]),
        "cut": int(arrays["cut"].sum()),
    }


def _named(word: str) -> tuple[str, str]:
    name, _, folder = word.partition("=")
    return name, folder or name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("write")
    one.add_argument("--models", nargs="+", required=True, help="NAME=FOLDER; adjusted TPF needs a bd3lm-N")
    one.add_argument("--valid", required=True, help="folder of token shards")
    one.add_argument("--configurations", nargs="+", default=["paper"])
    one.add_argument("--samples", type=int, default=1000)
    one.add_argument("--new-tokens", type=int)
    one.add_argument("--batch-size", type=int, default=500)
    one.add_argument("--judge", default="smollm2")
    one.add_argument("--device", default="cuda")
    one.add_argument("--dtype", default="bfloat16")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--times", action="store_true", help="also time steps: nothing else may run meanwhile")
    one.add_argument("--out", required=True)
    two = commands.add_parser("measure")
    two.add_argument("folder")
    two.add_argument("--out", required=True)
    options = parser.parse_args()
    {"write": write, "measure": measure}[options.command](options)


if __name__ == "__main__":
    main()

"""Measures what `research.texts write` kept, as `dadlm evaluate generation` measures texts. Needs no GPU."""

import json
import zlib
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dadlm.evaluate.generation import cost_of
from dadlm.evaluate.language_models import Scored
from dadlm.evaluate.quality import closeness, perplexity
from dadlm.evaluate.work import write_result

TRUTH = "truth.npz"
COMPONENTS = 128
"""Of the features: as many axes of the true texts are kept."""
POSITION = " nucleus position"  # ends the label of such a configuration
_SHOWN = 600  # characters of a text on the page of samples


def as_array(facts: dict[str, Any]) -> np.ndarray:
    """JSON as an array that can stand among the others of a file."""
    return np.frombuffer(json.dumps(facts).encode(), np.uint8)


def packed(texts: list[str]) -> np.ndarray:
    return np.frombuffer(zlib.compress(json.dumps(texts).encode()), np.uint8)


def unpacked(array: np.ndarray) -> list[str]:
    return json.loads(zlib.decompress(array.tobytes()))


def from_array(array: np.ndarray) -> dict[str, Any]:
    return json.loads(array.tobytes())


def measure(folder: Path, out: Path, jobs: int) -> None:
    """What the files of `write` say, in the form of `dadlm evaluate generation`."""
    truth = np.load(folder / TRUTH, allow_pickle=False)
    facts = from_array(truth["facts"])
    steps = _timed_steps(out / "speed" / "latency-32.json")
    files = sorted(set(folder.glob("[!.]*.npz")) - {folder / TRUTH})
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:  # k-means takes seconds for each
        found = list(pool.map(partial(_measured_file, seed=facts["seed"], steps=steps), files))
    models = {row["model"]: row.pop("model_facts") for row in found}
    samples = [row.pop("sample") for row in found]
    result = {
        "kind": "generation",
        **facts,
        "models": list(models.values()),
        "embedder": f"{facts['reader']}, first {COMPONENTS} components of the true texts",
        "judge_lm": facts["reader"],
        "latency": {
            name: {"ms_median": row["ms_median"], "batch_size": 32, "device": facts["device"]}
            for name, row in steps.items()
        },
        "reference": _measured(truth, torch.from_numpy(truth["documents"])[: len(truth["nll"])]),
        "rows": found,
        "notes": [
            "MAUVE from features of a small language model, not the paper's GPT-2-Large: compare rows here.",
            "Adjusted TPF by the time of first-hitting steps at batch 32, as in the paper.",
        ],
    }
    write_result(out / "texts" / "generation.json", result)
    write_result(out / "texts" / "samples.json", {"kind": "samples", "samples": samples})


def _measured_file(file: Path, seed: int, steps: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A row of the result, with what is known of its model and its first text."""
    arrays, truth = (np.load(one, allow_pickle=False) for one in (file, file.with_name(TRUTH)))
    known = system_of(from_array(arrays["facts"]))
    who_ = {name: known[name] for name in ("model", "family", "block_size", "configuration")}
    sample = {**who_, **known["sample"], "text": known["sample"]["text"][:_SHOWN]}
    print(f"{known['model']} {known['configuration']}", flush=True)
    measured = _measured_texts(arrays, truth, seed, _faster(known, steps))
    own = steps.get(known["model"])
    return {**known, "sample": sample, **measured, "ms_per_step": own and own["ms_median"]}


def system_of(facts: dict[str, Any]) -> dict[str, Any]:
    """Another nucleus is another system in the same configuration, so that tables have it beside the rest."""
    if facts["nucleus"] != "position":
        return facts
    name = position_name(facts["run"])
    return facts | {
        "model": name,
        "configuration": facts["configuration"].removesuffix(POSITION),
        "model_facts": facts["model_facts"] | {"name": name},
    }


def position_name(run: str) -> str:
    """What tables call a run whose tokens are drawn from the nucleus of their position."""
    return f"{run}-position"


def _timed_steps(file: Path) -> dict[str, dict[str, Any]]:
    """First-hitting steps, by the model's name (`research.speed`)."""
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
    return {row["model"]["name"]: row for row in rows}


def _faster(row: dict[str, Any], steps: dict[str, dict[str, Any]]) -> float | None:
    """BD3LM's time of a step over the model's own; BD3LM of the same block size is the reference."""
    if row["family"] == "bd3lm":
        return 1.0
    same = ("bd3lm", row["block_size"])
    base = [one for one in steps.values() if (one["model"]["family"], one["model"].get("block_size")) == same]
    own = steps.get(row["model"])
    return base[0]["ms_median"] / own["ms_median"] if base and own else None


def _measured_texts(arrays: Any, truth: Any, seed: int, faster: float | None) -> dict[str, Any]:
    documents = torch.from_numpy(truth["documents"])
    made = [
        {"tokens": range(tokens), "forward_passes": int(forward), "cache_passes": int(cache)}
        for tokens, forward, cache in zip(arrays["tokens"], arrays["forward"], arrays["cache"], strict=True)
    ]
    return {
        "samples": len(made),
        "mauve": closeness(_reading(truth), _reading(arrays), seed),
        **_measured(arrays, documents),
        **cost_of(made, documents, faster),
        "empty": int(arrays["empty"].sum()),
    }


def _reading(arrays: Any) -> Scored:
    return Scored(arrays["features"].astype(np.float32), arrays["nll"], arrays["judged"], arrays["cut"])


def _measured(arrays: Any, documents: Tensor) -> dict[str, Any]:
    return {
        "judge_perplexity": perplexity(_reading(arrays), documents),
        "distinct": {str(n): float(value) for n, value in zip((1, 2, 3), arrays["distinct"], strict=True)},
        "entropy": float(arrays["entropy"]),
        "repetition": float(arrays["repetition"]),
        "cut": int(arrays["cut"].sum()),
    }

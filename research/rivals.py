"""Related ways to keep tokens that are written together consistent, on the same models, prompts and axes.

    python -m research.rivals --valid SHARDS --out FILE [--ways "bd3lm punt 0.3" "bd3lm dcd 4"]

The protocol of `research.edge_texts`: held-out prompts of 64 tokens, 96 new ones each, top-p 0.9, the same
prompts and seeds for all. A way is a model, a sampler and its number: those of the library (random T, entropy
bound, confidence threshold, dilated T, first-hitting, ar), `even` T (N / T drawn positions a step), `punt` ε,
and DCD with T steps, the shipped AR as copula (`dcd`: random remasking and a causal mask; `dcd-remask`: the
divisor by masking again; `dcd-left`: from the left, as in the authors' script).

All passes are counted, the copula's separately. CPU seconds are those of this process (OMP_NUM_THREADS=1) and
include everything but loading models and judging. Two judges: the shipped AR, which is also DCD's copula, and
SmolLM2. Ways that are already in FILE are skipped; a FILE of other prompts, batches or weights is refused.
"""

import argparse
import hashlib
import json
import math
import time
from collections import Counter
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dadlm import generate
from dadlm.evaluate import bootstrap
from dadlm.evaluate.language_models import LanguageModel, open_language_model
from dadlm.evaluate.quality import distinct, entropy
from dadlm.evaluate.subject import fingerprint
from dadlm.evaluate.work import whole_file
from dadlm.model import Model, load
from dadlm.tokens import Rows, Shards
from research.blocks import Even, write
from research.copula import Dcd
from research.edge_texts import NEW, PROMPT, held_out, judged, without_end
from research.punt import Punt
from research.tables import table

OPTION = {
    "random": ("steps", int),
    "dilated": ("steps", int),
    "entropy": ("bound", float),
    "confidence": ("threshold", float),
}
DCD: dict[str, dict[str, Any]] = {
    "dcd": {},
    "dcd-remask": {"reference": "remask"},
    "dcd-left": {"order": "left"},
}
DILATED = ("bd3lm", "dadlm", "dadlm@position", "bd3lm-edges", "dadlm-edges")
WAYS = [
    "ar ar 1",
    *(f"bd3lm random {steps}" for steps in (16, 8, 4)),
    *(f"dadlm random {steps}" for steps in (8, 4)),
    *(f"bd3lm-edges random {steps}" for steps in (16, 8, 4, 2, 1)),
    *("bd3lm even 4", "bd3lm first-hitting 1"),
    *(f"dadlm-edges random {steps}" for steps in (8, 4, 2)),
    *(f"{model} dilated {steps}" for model in DILATED for steps in (8, 4, 2)),
    *("bd3lm entropy 8", "bd3lm confidence 0.6"),
    *("bd3lm-edges entropy 8", "bd3lm-edges entropy 16", "bd3lm-edges confidence 0.6"),
    *(f"bd3lm punt {epsilon}" for epsilon in (0.3, 1, 4)),
    *(f"bd3lm dcd {steps}" for steps in (8, 4, 2, 1)),
    "bd3lm dcd-remask 4",
    *(f"bd3lm dcd-left {steps}" for steps in (4, 2)),
]


@cache
def model_of(name: str) -> Model:
    return without_end(load(name, "cpu"))


@cache
def weights_of(name: str) -> str:
    """A hash of the weights as they were loaded, before `without_end`."""
    return fingerprint(load(name, "cpu"))


def models_of(way: str) -> set[str]:
    """Names of the models that write the texts of a way."""
    name, sampler, _ = way.split()
    return {name.partition("@")[0], *(["ar"] if sampler in DCD else [])}


def texts_of(way: str, prompts: Tensor, batch: int) -> tuple[Tensor, Counter[str]]:
    """Texts [R, NEW] and the passes that they took."""
    name, sampler, number = way.split()
    name, _, nucleus = name.partition("@")
    model = model_of(name)
    if sampler == "even":
        return write(model, prompts, NEW, Even(int(number)), batch=batch)
    if sampler == "punt":
        return write(model, prompts, NEW, Punt(float(number)), batch=batch)
    if sampler in DCD:
        return write(model, prompts, NEW, Dcd(model_of("ar"), int(number), **DCD[sampler]), batch=batch)
    how: dict[str, Any] = {} if sampler == "ar" else {"sampler": sampler}
    how |= {"nucleus": nucleus} if nucleus else {}
    if sampler in OPTION:
        option, kind = OPTION[sampler]
        how[option] = kind(number)
    out = generate(model, prompts.tolist(), max_new_tokens=NEW, seed=0, top_p=0.9, batch_size=batch, **how)
    return torch.tensor(out.tokens), Counter(draw=sum(out.forward_passes))


def measured(way: str, prompts: Tensor, batch: int) -> tuple[dict[str, Any], Tensor]:
    """What a way takes, and its texts."""
    name, sampler, number = way.split()
    for one in models_of(way):
        model_of(one)  # loaded before the clock starts
    texts_of(way, prompts[:1], 1)
    before = time.process_time()
    texts, passes = texts_of(way, prompts, batch)
    seconds = time.process_time() - before
    own = sum(count for kind, count in passes.items() if kind != "copula")
    rows, tokens = texts.tolist(), texts.numel()
    return {
        "way": way,
        "model": name,
        "sampler": sampler,
        "number": float(number),
        "texts": len(texts),
        "batch": batch,
        "passes": dict(passes),
        "tokens_per_own_pass": tokens / own,
        "tokens_per_pass": tokens / sum(passes.values()),
        "copula_passes_per_token": passes["copula"] / tokens,
        "ms_per_token": 1000 * seconds / tokens,
        "distinct": sum(len(set(ids)) for ids in rows) / tokens,
        "entropy": entropy(rows),
        "distinct_2": distinct(rows, 2),
        "distinct_3": distinct(rows, 3),
    }, texts


def by_ar(judge: Model, prompts: Tensor, texts: Tensor) -> dict[str, float]:
    return asdict(bootstrap(judged(judge, prompts, texts).double()))


def by_reader(judge: LanguageModel, model: Model, prompts: Tensor, texts: Tensor) -> dict[str, float]:
    """Nats a token of the judge's own."""
    assert model.tokenizer is not None
    before, after = ([model.tokenizer.decode(ids) for ids in rows.tolist()] for rows in (prompts, texts))
    scored = judge.score(after, before, batch_size=16)
    assert scored.nll is not None and scored.tokens is not None
    return asdict(bootstrap(torch.tensor(scored.nll), per=torch.tensor(scored.tokens)))


MODELS = {"ar": "AR", "bd3lm": "BD3LM", "dadlm": "DA-DLM", "bd3lm-edges": "BD3LM with edges"}
MODELS |= {"dadlm@position": 'DA-DLM, `nucleus="position"`', "dadlm-edges": "DA-DLM with edges"}
SAMPLERS = {
    "ar": "",
    "random": ", T = {}",
    "even": ", N / T random positions per step, T = {}",
    "dilated": ", dilated, T = {}",
    "first-hitting": ", first-hitting",
    "entropy": ", entropy {} nats",
    "confidence": ", confidence {}",
    "punt": ", PUNT, ε = {}",
    "dcd": ", DCD, T = {}",
    "dcd-remask": ", DCD with remasked divisor, T = {}",
    "dcd-left": ", DCD left to right, T = {}",
}


def label(way: str) -> str:
    model, sampler, number = way.split()
    return MODELS.get(model, model) + SAMPLERS[sampler].format(number)


def rows_of(found: list[dict[str, Any]]) -> list[list[str]]:
    """Of a table, in the order of WAYS."""
    order = {way: place for place, way in enumerate(WAYS)}
    return [shown(facts) for facts in sorted(found, key=lambda facts: order.get(facts["way"], len(WAYS)))]


def shown(facts: dict[str, Any]) -> list[str]:
    """A row of the table."""

    def perplexity(judge: str) -> str:
        if judge not in facts:
            return "–"
        mean, low, high = (math.exp(facts[judge][key]) for key in ("mean", "low", "high"))
        return f"{mean:,.0f} [{low:,.0f}, {high:,.0f}]"

    copula = facts["copula_passes_per_token"]
    per_step = facts["texts"] * NEW / facts["passes"]["draw"]
    cells = [f"{per_step:.2f}", f"{facts['tokens_per_own_pass']:.2f}", f"{copula:.2f}" if copula else "–"]
    cells += [f"{facts['ms_per_token']:.1f}", perplexity("ar"), perplexity("smollm2")]
    return [label(facts["way"]), *cells, f"{facts['distinct']:.2f} / {facts['distinct_2']:.2f}"]


HEAD = ["", "tokens per step", "tokens per pass", "copula passes per token", "CPU ms per token"]
HEAD += ["perplexity under AR", "perplexity under SmolLM2", "distinct tokens / 2-grams"]


SAME = ("texts", "batch", "prompts")
"""Fields that all rows of a file have in common."""


def differences(found: list[dict[str, Any]], now: dict[str, Any]) -> list[str]:
    """What rows of an earlier run were made with that is different now; older rows do not say everything."""
    changed = {f"{key} {row[key]}" for row in found for key in SAME if key in row and row[key] != now[key]}
    changed |= {
        f"weights of {name}"
        for row in found
        for name, hash_ in row.get("weights", {}).items()
        if now["weights"].get(name, hash_) != hash_
    }
    return sorted(changed)


def main() -> None:
    parser = argparse.ArgumentParser(description="related samplers on the same models and axes")
    parser.add_argument("--valid", type=Path, required=True)
    parser.add_argument("--ways", nargs="+", default=WAYS, help='such as "bd3lm random 8"')
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32, help="rows that are written side by side")
    parser.add_argument("--reader", default="smollm2", help="the second judge; none: none")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    prompts = held_out(Rows.from_shards(Shards.open(options.valid), 1024), options.texts)[:, :PROMPT]
    judge = load("ar", "cpu")
    reader = None if options.reader == "none" else open_language_model(options.reader)
    weights = {name: weights_of(name) for way in options.ways for name in models_of(way)}
    judges = {"ar": weights_of("ar")} | ({"smollm2": reader.identity} if reader else {})
    now: dict[str, Any] = {
        "texts": len(prompts),
        "batch": options.batch_size,
        "prompts": hashlib.sha256(prompts.numpy().tobytes()).hexdigest()[:16],
        "weights": weights | judges,
    }
    found = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else []
    if changed := differences(found, now):
        parser.error(f"{options.out} is of something else ({', '.join(changed)}): choose another --out")
    for way in options.ways:
        if any(one["way"] == way for one in found):
            continue
        facts, texts = measured(way, prompts, options.batch_size)
        used = {name: weights[name] for name in models_of(way)} | judges
        facts |= {"prompts": now["prompts"], "weights": used}
        facts["ar"] = by_ar(judge, prompts, texts)
        if reader is not None:
            facts["smollm2"] = by_reader(reader, judge, prompts, texts)
        found.append(facts)
        with whole_file(options.out) as handle:
            handle.write((json.dumps(found, indent=1) + "\n").encode())
        print(" | ".join(shown(facts)), flush=True)
    print(table(HEAD, rows_of(found)), end="")


if __name__ == "__main__":
    main()

"""Texts with and without token edges in few passes, judged by an AR model.

    python -m research.edge_texts --models bd3lm ./bd3lm-edges dadlm ./dadlm-edges --valid SHARDS --out FILE

Held-out prompts of 64 tokens, 96 new ones each (end-of-text is made impossible, so that all have that
length), the random sampler at T steps per block and others on request (`--entropy 2 8`, `--confidence 0.9`),
top-p 0.9 (NAME@position: the nucleus of the position). Measured: perplexity of the new tokens under the judge
with a 95% interval over prompts, their entropy and distinct tokens, tokens per forward pass. All use the same
prompts and seeds. `--keep FOLDER` keeps the ids of the texts.
"""

import argparse
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dadlm import generate
from dadlm.evaluate import bootstrap
from dadlm.evaluate.quality import entropy
from dadlm.model import Model, load
from dadlm.tokens import Rows, Shards

PROMPT, NEW = 64, 96


def without_end(model: Model) -> Model:
    bias = torch.zeros(model.config.vocab_size, device=model.device)
    bias[model.config.eot_id] = -1e4
    model.head.linear.bias = torch.nn.Parameter(bias)
    return model


@torch.inference_mode()
def judged(judge: Model, prompts: Tensor, texts: Tensor) -> Tensor:
    """Nats a token [R] of new tokens after prompts."""
    rows = torch.cat([prompts, texts], 1)
    hidden = judge.read(rows)[:, PROMPT - 1 : -1]
    logp = judge.head.token_logits(hidden).log_softmax(-1)
    return -logp.gather(-1, texts[..., None]).squeeze(-1).mean(1)


def held_out(rows: Rows, count: int) -> Tensor:
    """So many rows [count, 1024] from all over the text."""
    return rows.batch(range(0, len(rows), len(rows) // count))[:count]


def run_name(folder: str) -> str:
    """Of a model's folder, or of the run that it is a checkpoint of."""
    path = Path(folder)
    return path.parent.name if path.name in ("last", "best") else path.name


def main() -> None:
    parser = argparse.ArgumentParser(description="texts with token edges under an AR judge")
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--judge", default="ar")
    parser.add_argument("--valid", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--steps", type=int, nargs="*", default=[16, 8, 4, 2, 1])
    parser.add_argument("--entropy", type=float, nargs="*", default=[], help="bounds")
    parser.add_argument("--confidence", type=float, nargs="*", default=[], help="thresholds")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = Rows.from_shards(Shards.open(options.valid), 1024)
    prompts = held_out(rows, options.texts)[:, :PROMPT]
    judge, found = load(options.judge, options.device), []
    ways: list[dict[str, Any]] = [{"sampler": "random", "steps": steps} for steps in options.steps]
    ways += [{"sampler": "entropy", "bound": bound} for bound in options.entropy]
    ways += [{"sampler": "confidence", "threshold": threshold} for threshold in options.confidence]
    print("| model | sampler | tokens a pass | perplexity | distinct tokens |\n|---|---|---|---|---|")
    for name in options.models:
        folder, _, nucleus = name.partition("@")
        called, nucleus = run_name(folder), nucleus or "standard"
        model = without_end(load(folder, options.device))
        for way in ways:
            label = " ".join(map(str, way.values()))
            how = way | {"top_p": 0.9, "nucleus": nucleus}
            out = generate(model, prompts.tolist(), max_new_tokens=NEW, seed=0, **how)
            texts = torch.tensor(out.tokens)
            nats = torch.cat(
                [
                    judged(judge, some.to(judge.device), written.to(judge.device)).double().cpu()
                    for some, written in zip(prompts.split(64), texts.split(64), strict=True)
                ]
            )
            interval, tpf = bootstrap(nats), out.mean_tokens_per_forward
            distinct = sum(len(set(ids)) / len(ids) for ids in out.tokens) / len(out.tokens)
            found.append(
                {
                    "model": called,
                    **way,
                    "nats": asdict(interval),
                    "distinct": distinct,
                    "entropy": entropy(out.tokens),
                    "nucleus": nucleus,
                    "tpf": tpf,
                    "texts": len(out.tokens),
                }
            )
            if options.keep is not None:
                options.keep.mkdir(parents=True, exist_ok=True)
                kept = options.keep / f"{called}-{nucleus}-{way.get('steps', label)}.npy"
                np.save(kept, texts.numpy().astype(np.uint16), allow_pickle=False)
            mean, low, high = (f"{math.exp(x):,.0f}" for x in (interval.mean, interval.low, interval.high))
            cells = [f"{called} {nucleus}", label, f"{tpf:.2f}", f"{mean} [{low}, {high}]", f"{distinct:.2f}"]
            print(f"| {' | '.join(cells)} |", flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

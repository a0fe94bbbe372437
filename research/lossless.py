"""Whether lossless texts are the target's: greedy texts of both modes, token by token.

    python -m research.lossless wiki2015_val.jsonl --prompts 500 --tokens 256

Where two texts diverge, the target's two likeliest tokens are compared: passes over trees and over single
tokens sum in different orders, so near ties may flip. Writes results/lossless/greedy.json.
"""

import argparse
import json
from pathlib import Path

import torch

import dadlm
from dadlm.evaluate.samples import prompt_set
from dadlm.evaluate.text import rows_of
from dadlm.model import in_mode

RESULTS = Path(__file__).parent / "results" / "lossless"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data")
    parser.add_argument("--model", default="ar")
    parser.add_argument("--draft", default="bd3lm-edges")
    parser.add_argument("--prompts", type=int, default=500)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--tree", type=int, default=8)
    parser.add_argument("--cache", default=".dadlm-cache")
    options = parser.parse_args()
    model, draft = dadlm.load(options.model), dadlm.load(options.draft)
    rows, data = rows_of(model, options.data, cache=options.cache)
    prompts = prompt_set({"m": model}, rows, None, options.prompt_tokens, options.tokens, options.prompts, 0)
    given = [prompts.prompt(index) for index in prompts.indices]
    how = {"max_new_tokens": options.tokens, "temperature": 0.0, "seed": 0}
    tokens = cycles = equal = 0
    parted = []
    for first in range(0, len(given), 50):
        some = given[first : first + 50]
        alone = dadlm.generate(model, some, mode="ar", **how)
        found = dadlm.generate(model, some, mode="lossless", draft=draft, tree=options.tree, **how)
        for prompt, one, other in zip(some, alone.tokens, found.tokens, strict=True):
            equal += one == other
            if one != other:
                parted.append(_where(in_mode(model, "ar"), prompt, one, other))
        tokens, cycles = tokens + sum(map(len, found.tokens)), cycles + sum(found.cycles)
        print(
            f"{first + len(some)} prompts, {equal} equal, {tokens / cycles:.3f} tokens per cycle", flush=True
        )
    result = {
        "model": options.model,
        "draft": options.draft,
        "tree": options.tree,
        "data": data["source"],
        "prompts": len(given),
        "new_tokens": options.tokens,
        "equal": equal,
        "tokens_per_cycle": tokens / cycles,
        "parted": parted,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "greedy.json").write_text(json.dumps(result, indent=1) + "\n")


@torch.inference_mode()
def _where(model: dadlm.Model, prompt: list[int], one: list[int], other: list[int]) -> dict[str, float]:
    """The first place at which two texts differ, and how far apart the target's best two tokens are there."""
    place = next((i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    place = min(len(one), len(other)) if place is None else place
    hidden = model.read(torch.tensor([prompt + one[:place]]))[0, -1:]
    best = model.head.token_logits(hidden)[0].topk(2).values
    return {"place": place, "difference_of_logits": float(best[0] - best[1])}


if __name__ == "__main__":
    main()

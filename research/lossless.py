"""Whether lossless texts are the target's: greedy texts of both, token by token.

    python -m research.lossless wiki2015_val.jsonl --prompts 500 --tokens 256
    python -m research.lossless wiki2015_val.jsonl --model smollm2 --draft lookup --tree 3 \\
        --against transformers

The target's own texts are those of mode ar, or what transformers generates with the original's weights in
fp32. Where two texts diverge, the target's two likeliest tokens are compared, and nothing after that: passes
over trees and over single tokens sum in different orders, so near ties may flip. Writes
results/lossless/greedy.json, or greedy-MODEL.json for a model other than ar; started again, it goes on where
it stopped.

"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import dadlm
from dadlm.evaluate.samples import prompt_set
from dadlm.evaluate.subject import describe
from dadlm.evaluate.text import rows_of
from dadlm.evaluate.work import Work, write_result
from dadlm.model import in_mode, language_model_files

RESULTS = Path(__file__).parent / "results" / "lossless"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data")
    parser.add_argument("--model", default="ar")
    parser.add_argument("--draft", default="bd3lm-edges", help="a model, or lookup")
    parser.add_argument("--against", choices=("ar", "transformers"), default="ar")
    parser.add_argument("--prompts", type=int, default=500)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--tree", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--cache", default=".dadlm-cache")
    options = parser.parse_args()
    model = dadlm.load(options.model)
    rows, data = rows_of(model, options.data, cache=options.cache)
    prompts = prompt_set({"m": model}, rows, None, options.prompt_tokens, options.tokens, options.prompts, 0)
    name = "greedy" if options.model == "ar" else f"greedy-{options.model}"
    subject = {
        "model": describe(model, options.model),
        "draft": options.draft,
        "tree": options.tree,
        "against": options.against,
        "data": data | {"source": Path(options.data).name},
        "prompt_tokens": options.prompt_tokens,
        "new_tokens": options.tokens,
    }
    kind = Transformers if options.against == "transformers" else ModeAr
    truth = kind(options.model, model, options.tokens)
    keys = [str(index) for index in prompts.indices]
    how: dict[str, Any] = {"max_new_tokens": options.tokens, "temperature": 0.0}
    how |= {"mode": "lossless", "draft": options.draft, "tree": options.tree}
    with Work(name, subject, Path(options.cache) / "lossless") as work:
        for batch in work.batches(keys, options.batch_size, "texts"):
            given = [prompts.prompt(int(key)) for key in batch]
            start = time.perf_counter()
            wanted = truth.texts(given)
            middle = time.perf_counter()
            found = dadlm.generate(model, given, batch_size=len(given), **how)
            seconds = f"{middle - start:.0f} s and {time.perf_counter() - middle:.0f} s"
            texts = zip(batch, given, wanted, found.tokens, found.cycles, strict=True)
            work.add(
                (key, {"tokens": len(other), "cycles": cycles, "parting": parting(truth, ids, one, other)})
                for key, ids, one, other, cycles in texts
            )
            print(f"{seconds}: {summary(work)}", flush=True)
            write_result(RESULTS / f"{name}.json", subject | summary(work))
        write_result(RESULTS / f"{name}.json", subject | summary(work))  # if all was there already


class ModeAr:
    """The target in our own engine."""

    def __init__(self, name: str, model: dadlm.Model, tokens: int) -> None:
        del name
        self.model, self.tokens = in_mode(model, "ar"), tokens

    def texts(self, prompts: Sequence[list[int]]) -> list[list[int]]:
        how: dict[str, Any] = {"batch_size": len(prompts), "temperature": 0.0}
        return dadlm.generate(self.model, prompts, max_new_tokens=self.tokens, **how).tokens

    def logits(self, ids: list[int]) -> Tensor:
        """Of the token that follows."""
        return self.model.head.token_logits(self.model.read(torch.tensor([ids]))[0, -1:])[0]


class Transformers:
    """The original that the target was converted from, in transformers."""

    def __init__(self, name: str, model: dadlm.Model, tokens: int) -> None:
        self.original = language_model_files.load(language_model_files.locate(name)[0])[1]
        self.ends, self.tokens = model.end_ids, tokens

    def texts(self, prompts: Sequence[list[int]]) -> list[list[int]]:
        """Of prompts of one length; the model's ends replace those of its generation_config."""
        ids = torch.tensor(prompts)
        options = {"do_sample": False, "eos_token_id": [*self.ends], "pad_token_id": self.ends[0]}
        whole = self.original.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=self.tokens, **options
        )
        return [self._up_to_end(one) for one in whole[:, ids.shape[1] :].tolist()]

    def logits(self, ids: list[int]) -> Tensor:
        return self.original(torch.tensor([ids])).logits[0, -1]

    def _up_to_end(self, ids: list[int]) -> list[int]:
        ends = [place for place, token in enumerate(ids) if token in self.ends]
        return ids[: ends[0] + 1] if ends else ids


@torch.inference_mode()
def parting(
    truth: ModeAr | Transformers, prompt: list[int], one: list[int], other: list[int]
) -> dict[str, Any] | None:
    """The first place at which two texts differ, and how far apart the target's best two tokens are there."""
    if one == other:
        return None
    place = next((i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    place = min(len(one), len(other)) if place is None else place
    best = truth.logits(prompt + one[:place]).topk(2)
    tokens = one[place : place + 1] + other[place : place + 1]
    return {
        "place": place,
        "difference_of_logits": float(best.values[0] - best.values[1]),
        "between_the_best_two": sorted(tokens) == sorted(best.indices.tolist()),
    }


def summary(work: Work) -> dict[str, Any]:
    pieces = work.pieces.values()
    parted = [{"prompt": int(key)} | one["parting"] for key, one in work.pieces.items() if one["parting"]]
    return {
        "prompts": len(pieces),
        "equal": len(pieces) - len(parted),
        "tokens": sum(one["tokens"] for one in pieces),
        "tokens_per_cycle": sum(one["tokens"] for one in pieces) / sum(one["cycles"] for one in pieces),
        "parted": parted,
    }


if __name__ == "__main__":
    main()

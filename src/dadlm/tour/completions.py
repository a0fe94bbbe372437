"""One prompt completed by several systems in several ways, with what each took and what came of it.

The judge of quality is an AR model: the perplexity that it gives to what the others, and itself, wrote.
"""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dadlm.decode import DecodeSettings, generate
from dadlm.errors import ConfigError
from dadlm.model import Model
from dadlm.objective import losses

TEXTS, NEW_TOKENS = 8, 96


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One system under one way of decoding."""

    system: str
    decoding: str
    text: str
    """The first of the texts."""
    seconds: float
    """Wall-clock of that text, decoded alone."""
    tokens: float
    """Mean tokens of a text."""
    forward_passes: float
    """Mean forward passes of a text."""
    tokens_per_forward: float
    """All tokens over all passes."""
    judge_perplexity: float
    """Of all texts, given the prompt."""


def completions(models: Mapping[str, Model], prompt: str, seed: int, judge: Model) -> Iterator[Completion]:
    """Each system under each way of decoding, as soon as it is measured; text i has the seed `seed` + i."""
    for system, model in models.items():
        ids = _ids(model, prompt)
        generate(model, [ids], seed=seed, max_new_tokens=1)  # what takes its time only once is not measured
        for decoding, options in _ways(model).items():
            new_tokens = _new_tokens(model, len(ids))
            # Top-p that means the same to all of them: see docs/maths.md, 11.
            settings = DecodeSettings(max_new_tokens=new_tokens, nucleus="position", **options)
            start = time.perf_counter()
            first = generate(model, [ids], seed=seed, settings=settings)
            seconds = time.perf_counter() - start
            out = generate(model, [ids] * TEXTS, seed=seed, settings=settings)
            tokens, passes = sum(map(len, out.tokens)), sum(out.forward_passes)
            nats = sum(_nats(judge, ids, one) for one in out.tokens)
            yield Completion(
                system=system,
                decoding=decoding,
                text=first.texts[0],
                seconds=seconds,
                tokens=tokens / TEXTS,
                forward_passes=passes / TEXTS,
                tokens_per_forward=out.mean_tokens_per_forward,
                judge_perplexity=math.exp(nats / tokens),
            )


def _ids(model: Model, prompt: str) -> list[int]:
    if model.tokenizer is None:
        raise ConfigError("a model without a tokenizer cannot read a prompt")
    return model.tokenizer.encode(prompt) or [model.config.eot_id]


def _ways(model: Model) -> dict[str, dict[str, Any]]:
    """Ways of decoding by name: a token per step, or half and a quarter as many steps as tokens."""
    N = model.config.block
    few = {f"T={T}": {"sampler": "random", "steps": T} for T in (N // 2, N // 4) if T}
    return {"first-hitting" if few else "token by token": {}} | few


def _new_tokens(model: Model, prompt: int) -> int:
    """About NEW_TOKENS, to the end of a block: tokens that are cut off would cost passes and not count."""
    end = min(prompt + NEW_TOKENS, model.config.context) // model.config.block_size * model.config.block_size
    return max(1, end - prompt)


@torch.inference_mode()
def _nats(judge: Model, prompt: list[int], tokens: list[int]) -> float:
    """Negative log-likelihood of tokens after a prompt."""
    nll = losses(judge, torch.tensor([prompt + tokens], device=judge.device), None).train
    return float(nll[0, len(prompt) - 1 :].sum())

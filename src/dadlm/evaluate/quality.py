"""How good texts are, in numbers: by what was read off them, and by what can be counted in their tokens.

Knows nothing of who wrote the texts, or how.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from dadlm.evaluate.features import Reading
from dadlm.evaluate.intervals import Interval
from dadlm.evaluate.mauve import mauve
from dadlm.evaluate.statistics import distinct, entropy, repetition

_DRAWS = 2000


def alone(reading: Reading, tokens: Sequence[Sequence[int]]) -> dict[str, Any]:
    """What needs no other texts to compare with."""
    return {
        "judge_perplexity": perplexity(reading),
        "distinct": {str(n): distinct(tokens, n) for n in (1, 2, 3)},
        "entropy": entropy(tokens),
        "repetition": repetition(tokens),
    }


def closeness(truth: Reading, reading: Reading, seed: int) -> dict[str, float] | None:
    """MAUVE and its interval; None without features, or where the texts have no content to tell apart."""
    if truth.features is None or reading.features is None:
        return None
    both = np.concatenate([truth.features, reading.features])
    if (both == both[0]).all():  # nothing but empty texts after one prompt
        return None
    score = mauve(truth.features, reading.features, seed=seed % 2**30)  # k-means has 32 bits for it
    return {name: score[name] for name in ("mean", "low", "high")}


def perplexity(reading: Reading) -> dict[str, float] | None:
    """exp(Σ nll / Σ tokens) and its bootstrap interval over texts; empty texts have no perplexity."""
    if reading.nll is None or reading.tokens is None or not reading.tokens.any():
        return None
    nll, tokens = (values[reading.tokens > 0] for values in (reading.nll, reading.tokens))
    drawn = np.random.default_rng(0).multinomial(len(nll), np.full(len(nll), 1 / len(nll)), size=_DRAWS)
    low, high = np.exp(np.quantile((drawn @ nll) / (drawn @ tokens), [0.025, 0.975]))
    return asdict(Interval(float(np.exp(nll.sum() / tokens.sum())), float(low), float(high)))

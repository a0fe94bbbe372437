"""How good texts are, in numbers: by what was read off them, and by what can be counted in their tokens.

Knows nothing of who wrote the texts, or how.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dadlm.evaluate.features import Reading
from dadlm.evaluate.intervals import bootstrap
from dadlm.evaluate.mauve import mauve
from dadlm.evaluate.statistics import distinct, entropy, repetition


def alone(reading: Reading, tokens: Sequence[Sequence[int]], documents: Tensor) -> dict[str, Any]:
    """What needs no other texts to compare with; `documents` [n] are those that the texts continue."""
    return {
        "judge_perplexity": perplexity(reading, documents),
        "distinct": {str(n): distinct(tokens, n) for n in (1, 2, 3)},
        "entropy": entropy(tokens),
        "repetition": repetition(tokens),
        "cut": int(reading.cut.sum()),
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


def perplexity(reading: Reading, documents: Tensor) -> dict[str, float] | None:
    """exp(Σ nll / Σ tokens) and its bootstrap interval over documents; empty texts have no perplexity."""
    if reading.nll is None or reading.tokens is None or not reading.tokens.any():
        return None
    nll, tokens = torch.from_numpy(reading.nll), torch.from_numpy(reading.tokens)
    some = tokens > 0
    mean = bootstrap(nll[some], documents[some], per=tokens[some])
    return {name: math.exp(value) for name, value in asdict(mean).items()}

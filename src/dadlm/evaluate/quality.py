"""How good texts are: what language models say of them, and what can be counted in their tokens.

Readings are kept in files named by a hash of the reader's weights and the texts.

n texts, D features.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from dadlm.errors import ConfigError
from dadlm.evaluate.intervals import bootstrap
from dadlm.evaluate.language_models import LanguageModel, Scored, open_language_model
from dadlm.evaluate.mauve import mauve
from dadlm.model.files import whole_file

_CHUNK = 256  # texts that share a file


class Readers:
    """An embedder and a judge, either of which may be None."""

    def __init__(
        self, embedder: str | None, judge_lm: str | None, device: str, folder: Path | None, quiet: bool
    ) -> None:
        """`folder` keeps the readings; without one everything is read anew."""
        names = dict.fromkeys(name for name in (embedder, judge_lm) if name is not None)
        opened = {name: open_language_model(name, device) for name in names}
        self.embedder = None if embedder is None else opened[embedder]
        self.judge = None if judge_lm is None else opened[judge_lm]
        self._opened, self._folder, self._quiet = list(opened.values()), folder, quiet

    @property
    def identities(self) -> dict[str, str]:
        """Of each reader, by its label."""
        return {reader.label: reader.identity for reader in self._opened}

    def read(self, what: str, prompts: Sequence[str], texts: Sequence[str]) -> Scored:
        """Read each text after its prompt: features by the embedder, the rest by the judge.

        `what` stands beside the progress bar; a text is truncated if it was too long for either.
        """
        scored = {reader.label: self._scored(reader, what, prompts, texts) for reader in self._opened}
        features = self.embedder and scored[self.embedder.label].features
        truncated = np.zeros(len(texts), bool)
        for one in scored.values():
            truncated |= one.truncated
        if self.judge is None:
            return Scored(features, None, None, truncated)
        judged = scored[self.judge.label]
        if judged.nll is None:
            raise ConfigError(
                f"{self.judge.label} gives texts no probability and cannot judge them: "
                "choose another --judge-lm, or none"
            )
        return Scored(features, judged.nll, judged.tokens, truncated)

    def _scored(
        self, reader: LanguageModel, what: str, prompts: Sequence[str], texts: Sequence[str]
    ) -> Scored:
        chunks = [slice(first, first + _CHUNK) for first in range(0, len(texts), _CHUNK)]
        bar = track(chunks, f"reading {what}", console=Console(stderr=True), disable=self._quiet)
        parts = [vars(self._chunk(reader, prompts[chunk], texts[chunk])) for chunk in bar]
        columns = ((name, [part[name] for part in parts]) for name in parts[0])
        arrays: dict[str, Any] = {
            name: None if some[0] is None else np.concatenate(some) for name, some in columns
        }
        return Scored(**arrays)

    def _chunk(self, reader: LanguageModel, prompts: Sequence[str], texts: Sequence[str]) -> Scored:
        if self._folder is None:
            return reader.score(texts, prompts)
        identity = json.dumps([reader.identity, list(prompts), list(texts)])
        file = self._folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.npz"
        if not file.exists():
            scored = reader.score(texts, prompts)
            arrays = vars(scored) | {"cut": scored.truncated, "truncated": None}  # its name in older files
            with whole_file(file) as handle:
                np.savez(handle, **{name: value for name, value in arrays.items() if value is not None})
        with np.load(file, allow_pickle=False) as arrays:
            return Scored(arrays["features"], arrays.get("nll"), arrays.get("tokens"), arrays["cut"])


TokenRows = Sequence[Sequence[int]]


def distinct(rows: TokenRows, n: int) -> float:
    """Distinct n-grams over all n-grams of the set; no n-gram in the set: 0, as nothing varied."""
    grams = [gram for row in rows for gram in _grams(row, n)]
    return len(set(grams)) / max(len(grams), 1)


def entropy(rows: TokenRows) -> float:
    """Mean over rows of the entropy, in nats, of the row's own token frequencies, as BD3LM reports it.

    An empty row counts as 0: a model must not seem more varied because it writes nothing.
    """
    shares = ([count / len(row) for count in Counter(row).values()] for row in rows)
    return math.fsum(-math.fsum(p * math.log(p) for p in row) for row in shares) / max(len(rows), 1)


def repetition(rows: TokenRows, n: int = 4) -> float:
    """Share of n-grams that occurred earlier in the same row, over all n-grams of the set."""
    total = sum(len(_grams(row, n)) for row in rows)
    fresh = sum(len(set(_grams(row, n))) for row in rows)  # each n-gram is new once, then repeated
    return (total - fresh) / max(total, 1)


def _grams(row: Sequence[int], n: int) -> list[tuple[int, ...]]:
    if n < 1:
        raise ConfigError(f"n-grams have at least one token, not {n}")
    return [tuple(row[first : first + n]) for first in range(len(row) - n + 1)]


def reference_free(reading: Scored, tokens: TokenRows, documents: Tensor) -> dict[str, Any]:
    """Measures that need no reference texts; `documents` [n] are those that the texts continue."""
    return {
        "judge_perplexity": perplexity(reading, documents),
        "distinct": {str(n): distinct(tokens, n) for n in (1, 2, 3)},
        "entropy": entropy(tokens),
        "repetition": repetition(tokens),
        "cut": int(reading.truncated.sum()),
    }


def closeness(truth: Scored, reading: Scored, seed: int) -> dict[str, float] | None:
    """MAUVE and its interval; None without features, or where the texts have no content to tell apart."""
    if truth.features is None or reading.features is None:
        return None
    both = np.concatenate([truth.features, reading.features])
    if (both == both[0]).all():  # nothing but empty texts after one prompt
        return None
    return mauve(truth.features, reading.features, seed=seed % 2**30)  # k-means has 32 bits for it


def perplexity(reading: Scored, documents: Tensor) -> dict[str, float] | None:
    """exp(Σ nll / Σ tokens) and its bootstrap interval over documents; empty texts have no perplexity."""
    if reading.nll is None or reading.tokens is None or not reading.tokens.any():
        return None
    nll, tokens = torch.from_numpy(reading.nll), torch.from_numpy(reading.tokens)
    some = tokens > 0
    mean = bootstrap(nll[some], documents[some], per=tokens[some])
    return {name: math.exp(value) for name, value in asdict(mean).items()}

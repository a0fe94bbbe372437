"""Texts read by language models: features by one, likelihood by another, in one pass where they are the same.

What was read is kept in files named by a hash of the reader's weights and the texts: they cannot be taken for
those of others, and a kill loses one file's worth of work. Knows nothing of who wrote the texts.

n texts, D features.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from dadlm.errors import ConfigError
from dadlm.evaluate.language_models import LanguageModel, Scored, open_language_model
from dadlm.evaluate.work import whole_file

_CHUNK = 256  # texts that share a file


@dataclass(frozen=True)
class Reading:
    """What was read off n texts; None where nobody was asked."""

    features: np.ndarray | None
    """[n, D] by the embedder."""
    nll: np.ndarray | None
    """[n] by the judge: −log p of the text after its prompt, in nats."""
    tokens: np.ndarray | None
    """[n]: how many tokens the text has for the judge."""
    cut: np.ndarray
    """[n]: whether a reader's window was too short for prompt and text."""


class Readers:
    """An embedder and a judge, either of which may be missing."""

    def __init__(
        self, embedder: str | None, judge_lm: str | None, device: str, folder: Path | None, quiet: bool
    ) -> None:
        """`folder` keeps what was read; without one everything is read anew."""
        names = dict.fromkeys(name for name in (embedder, judge_lm) if name is not None)
        opened = {name: open_language_model(name, device) for name in names}
        self.embedder = None if embedder is None else opened[embedder]
        self.judge = None if judge_lm is None else opened[judge_lm]
        self._opened, self._folder, self._quiet = list(opened.values()), folder, quiet

    @property
    def identities(self) -> dict[str, str]:
        """Of each reader, by its label."""
        return {reader.label: reader.identity for reader in self._opened}

    def read(self, what: str, prompts: Sequence[str], texts: Sequence[str]) -> Reading:
        """Read each text after its prompt; `what` stands beside the progress bar."""
        scored = {reader.label: self._scored(reader, what, prompts, texts) for reader in self._opened}
        features = None if self.embedder is None else scored[self.embedder.label].features
        cut = np.any([one.cut for one in scored.values()], axis=0) if scored else np.zeros(len(texts), bool)
        if self.judge is None:
            return Reading(features, None, None, cut)
        judged = scored[self.judge.label]
        if judged.nll is None:
            raise ConfigError(
                f"{self.judge.label} gives texts no probability and cannot judge them: "
                "choose another --judge-lm, or none"
            )
        return Reading(features, judged.nll, judged.tokens, cut)

    def _scored(
        self, reader: LanguageModel, what: str, prompts: Sequence[str], texts: Sequence[str]
    ) -> Scored:
        chunks = [slice(first, first + _CHUNK) for first in range(0, len(texts), _CHUNK)]
        bar = track(chunks, f"reading {what}", console=Console(stderr=True), disable=self._quiet)
        parts = [self._chunk(reader, prompts[chunk], texts[chunk]) for chunk in bar]
        return Scored(
            np.concatenate([part.features for part in parts]),
            _joined([part.nll for part in parts]),
            _joined([part.tokens for part in parts]),
            np.concatenate([part.cut for part in parts]),
        )

    def _chunk(self, reader: LanguageModel, prompts: Sequence[str], texts: Sequence[str]) -> Scored:
        if self._folder is None:
            return reader.score(texts, prompts)
        identity = json.dumps([reader.identity, list(prompts), list(texts)])
        file = self._folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.npz"
        if not file.exists():
            _save(file, reader.score(texts, prompts))
        with np.load(file, allow_pickle=False) as arrays:
            return Scored(arrays["features"], arrays.get("nll"), arrays.get("tokens"), arrays["cut"])


def _joined(parts: Sequence[np.ndarray | None]) -> np.ndarray | None:
    return None if parts[0] is None else np.concatenate([part for part in parts if part is not None])


def _save(file: Path, scored: Scored) -> None:
    with whole_file(file) as handle:
        np.savez(handle, **{name: value for name, value in vars(scored).items() if value is not None})

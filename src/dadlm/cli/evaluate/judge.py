"""dadlm evaluate judge: two sets of samples compared in pairs by a language model."""

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import tyro

from dadlm.cli.evaluate.common import Common
from dadlm.errors import ConfigError
from dadlm.evaluate import judge
from dadlm.evaluate.endpoint import Endpoint
from dadlm.evaluate.language_models import open_language_model
from dadlm.evaluate.pairs import plant, read_pairs, trust
from dadlm.evaluate.question import LocalJudge
from dadlm.tokens.sources import read_texts


@dataclass(frozen=True, kw_only=True)
class Judge(Common):
    """Two sets of samples compared in pairs by a language model."""

    samples: tuple[str, ...] = ()
    """Samples written by `dadlm evaluate generation`: one file or folder with both models, or A's and B's."""
    model_a: str = ""
    """Name of model A in its samples; needed if they contain several models."""
    model_b: str = ""
    """Name of model B in its samples."""
    planted: str = ""
    """Real text (.txt, .jsonl, ...; long documents) to build control pairs from, whose better side is
    known. The judge's verdicts on them are reported too. Without --samples, only these are judged."""
    planted_count: int = 50
    """Documents of that text to build pairs from."""
    endpoint: str = ""
    """Judge with this model of an OpenAI-compatible server;
    address in OPENAI_BASE_URL, key in OPENAI_API_KEY."""
    judge: str = ""
    """Judge with a language model on this machine (smollm2, a folder, a
    Hugging Face name), which need not be able to answer questions:
    the text with the higher log p(text prompt) − log p(text) wins."""
    concurrency: int = 4
    """Number of concurrent requests."""
    timeout: float = 60.0
    """Seconds without any data after which a request counts as failed."""
    body: str = "{}"
    """Additional fields of the request as JSON, e.g. '{"thinking": {"type": "disabled"}}'; null drops
    a default (temperature, max_tokens). Files record the names of the fields, not their values."""
    price_in: float | None = None
    """Price of a million prompt tokens, to show the cost."""
    price_out: float | None = None
    """Price of a million answer tokens."""
    # Nothing is drawn, and nothing is computed in batches.
    seed: tyro.conf.Suppress[int] = 0
    batch_size: tyro.conf.Suppress[int] = 16

    def measure(self, folder: Path) -> dict[str, Any]:
        if len(self.samples) not in (1, 2) and (self.samples or not self.planted):
            raise ConfigError("no samples: pass --samples FOLDER, or --samples A.jsonl B.jsonl")
        if bool(self.endpoint) == bool(self.judge):
            raise ConfigError(
                "who judges? Pass either --endpoint MODEL (a server's) or --judge NAME (on this machine)"
            )
        if self.planted_count < 1:
            raise ConfigError(f"--planted-count must be at least 1, got {self.planted_count}")
        by, prices = self._judge(), {"price_in": self.price_in, "price_out": self.price_out}
        planted: dict[str, Any] = {}
        if self.planted:
            # Some documents are too short: look at more than are wanted, and never at all of a large text.
            texts = list(islice(read_texts(self.planted), 20 * self.planted_count))
            known = judge(
                plant(texts, count=self.planted_count, source=self.planted),
                by,
                out=folder / "planted" if self.samples else folder,
                quiet=self.json,
                **prices,
            )
            planted = {"planted": trust(known)}
            if not self.samples:
                return known | planted
        pairs = read_pairs(self.samples[0], self.samples[-1], self.model_a, self.model_b)
        return judge(pairs, by, out=folder, quiet=self.json, **prices) | planted

    def _judge(self) -> Endpoint | LocalJudge:
        if not self.endpoint:
            return LocalJudge(open_language_model(self.judge, self.device))
        try:
            body = json.loads(self.body)
        except ValueError as error:
            raise ConfigError(f"--body is not JSON: {error}") from None
        if not isinstance(body, dict):
            raise ConfigError("--body must be a JSON object, such as '{\"top_p\": 1}'")
        return Endpoint(model=self.endpoint, threads=self.concurrency, timeout=self.timeout, body=body)

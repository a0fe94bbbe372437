"""Language models made by others, opened by name: they embed texts, and say how likely a text is.

Knows texts and numbers; nothing of our own models, of what MAUVE does with a feature, or a judge with a
probability.

n texts, B texts of a batch, L tokens of its longest text, D width, V vocabulary.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dadlm.errors import ConfigError, DataError
from dadlm.evaluate.language_model_files import identity, load, locate
from dadlm.model.checkpoint import find_device

_TOKENS = 8192  # of a batch: logits of a large vocabulary take 200 kB for each


@dataclass(frozen=True)
class Scored:
    """What a language model says of n texts."""

    features: np.ndarray
    """float32 [n, D]: hidden state of the last token (causal), mean of all at unit length (encoder)."""
    nll: np.ndarray | None
    """float64 [n]: −log p, in nats, of the tokens that were scored; None for an encoder."""
    tokens: np.ndarray | None
    """int64 [n]: how many tokens that are; None for an encoder."""
    cut: np.ndarray
    """bool [n]: whether the text went on where the reading ended."""


def open_language_model(
    name: str, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> "LanguageModel":
    """Open `smollm2`, `minilm`, a folder, a .gguf file or a hub name."""
    target = find_device(device)
    place, label = locate(name)
    tokenizer, model, causal = load(place)
    return (LanguageModel if causal else Encoder)(
        label, identity(place), tokenizer, model.to(target, dtype).eval()
    )


class LanguageModel:
    """A causal language model."""

    label: str
    """What tables print."""
    identity: str
    """Tells it from every other, also from one that lay in the same place before."""
    window: int
    """The most tokens it can read."""

    def __init__(self, label: str, identity: str, tokenizer: Any, model: Any) -> None:
        self.label, self.identity, self._tokenizer, self._model = label, identity, tokenizer, model
        positions = getattr(model.config, "max_position_embeddings", None) or sys.maxsize
        self.window = min(positions, tokenizer.model_max_length, sys.maxsize)  # 10^30 where it is not known

    @torch.inference_mode()
    def score(
        self,
        texts: Sequence[str],
        prompts: Sequence[str] | None = None,
        *,
        max_tokens: int | None = None,
        batch_size: int = 8,
    ) -> Scored:
        """Last hidden state and −log p of each text after its prompt.

        Both together are cut to `max_tokens`, or to all that the model can read.

        Prompt and text are tokenized apart and their ids joined, so that no token spans the boundary and all
        continuations of a prompt have the same context. Without a prompt the first token has nothing before
        it and is not scored, unless the tokenizer itself puts a start token there: MAUVE embeds like this,
        and generative perplexity is usually measured so. An empty text has its prompt's feature or, without
        one, that of the end-of-text token.
        """
        limit = min(max_tokens or self.window, self.window)
        rows, starts, cut = [], [], []
        for prompt, text in _pairs(prompts, texts):
            context = self._context(prompt, limit)
            ids = context + self._ids(text, limit + 1)  # one more shows whether there was more
            rows.append(ids[:limit] or [self._end])
            starts.append(max(len(context), 1))
            cut.append(len(ids) > limit)
        features, nll = np.zeros((len(rows), self._model.config.hidden_size), np.float32), np.zeros(len(rows))
        for batch, ids, mask in self._batches(rows, batch_size):
            out = self._model(input_ids=ids, attention_mask=mask, output_hidden_states=True, use_cache=False)
            for b, i in enumerate(batch):
                start, end = starts[i], len(rows[i])
                features[i] = out.hidden_states[-1][b, end - 1].float().cpu().numpy()
                nll[i] = -_logp(out.logits[b, start - 1 : end - 1], ids[b, start:end])
        tokens = [len(row) - start for row, start in zip(rows, starts, strict=True)]
        return Scored(features, nll, np.array(tokens, dtype=np.int64), np.array(cut, dtype=bool))

    @torch.inference_mode()
    def answer_logp(self, prompt: str, answers: Sequence[str]) -> list[float]:
        """log p of all tokens of each answer after the prompt, tokenized apart as in `score`."""
        context = self._context(prompt, self.window) or [self._end]
        passes: dict[tuple[int, ...], Tensor] = {}  # answers that differ in their last token share a pass
        logp = []
        for answer in answers:
            ids = self._ids(answer, self.window)
            if len(context) + len(ids) > self.window:
                raise self._no_room(len(context), self.window)
            before = tuple(ids[:-1])
            if before not in passes:
                row = torch.tensor([[*context, *before]], device=self._model.device)
                passes[before] = self._model(input_ids=row, use_cache=False).logits[0, len(context) - 1 :]
            targets = torch.tensor(ids, dtype=torch.long, device=self._model.device)
            logp.append(_logp(passes[before][: len(ids)], targets))
        return logp

    @property
    def _end(self) -> int:
        return self._tokenizer.eos_token_id or 0

    def _context(self, prompt: str, limit: int) -> list[int]:
        """Tokens before the text, with a start token where the tokenizer puts one."""
        ids = self._ids(prompt, limit, special=True)
        if len(ids) >= limit:
            raise self._no_room(len(ids), limit)
        return ids

    def _ids(self, text: str, limit: int, special: bool = False) -> list[int]:
        return self._tokenizer(text, add_special_tokens=special, truncation=True, max_length=limit).input_ids

    def _no_room(self, length: int, limit: int) -> ConfigError:
        return ConfigError(
            f"{self.label} reads {limit} tokens, and a prompt has {length} or more: nothing is left for the "
            "text; shorten the prompt or choose a language model with a longer context"
        )

    def _batches(self, rows: list[list[int]], size: int) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Indices [B], ids [B, L] and mask [B, L], padded on the right, where no token of a row looks."""
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))  # like lengths together: little padding
        while order:
            longest = len(rows[order[0]])
            some = max(1, min(size, _TOKENS // max(longest, 1)))
            batch, order = order[:some], order[some:]
            ids = torch.zeros(len(batch), longest, dtype=torch.long)
            mask = torch.zeros_like(ids)
            for b, i in enumerate(batch):
                ids[b, : len(rows[i])] = torch.tensor(rows[i])
                mask[b, : len(rows[i])] = 1
            yield batch, ids.to(self._model.device), mask.to(self._model.device)


class Encoder(LanguageModel):
    """A model that reads a text as a whole: it embeds, and has no probability of a text."""

    @torch.inference_mode()
    def score(
        self,
        texts: Sequence[str],
        prompts: Sequence[str] | None = None,
        *,
        max_tokens: int | None = None,
        batch_size: int = 8,
    ) -> Scored:
        """Mean of the last hidden states of prompt and text together, at unit length."""
        limit = min(max_tokens or self.window, self.window)
        whole = [prompt + text for prompt, text in _pairs(prompts, texts)]
        rows = [self._ids(text, limit, special=True) for text in whole]
        cut = [len(self._ids(text, limit + 1, special=True)) > limit for text in whole]
        features = np.zeros((len(rows), self._model.config.hidden_size), np.float32)
        for batch, ids, mask in self._batches(rows, batch_size):
            hidden = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
            mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            features[batch] = F.normalize(mean, dim=1).float().cpu().numpy()
        return Scored(features, None, None, np.array(cut, dtype=bool))

    def answer_logp(self, prompt: str, answers: Sequence[str]) -> list[float]:
        raise ConfigError(f"{self.label} is an encoder and has no probabilities; smollm2, for example, has")


def _pairs(prompts: Sequence[str] | None, texts: Sequence[str]) -> list[tuple[str, str]]:
    prompts = [""] * len(texts) if prompts is None else prompts
    if len(prompts) != len(texts):
        raise DataError(f"{len(texts)} texts need as many prompts, not {len(prompts)}")
    return list(zip(prompts, texts, strict=True))


def _logp(logits: Tensor, targets: Tensor) -> float:
    """Sum of log p of the targets [L] under logits [L, V]."""
    return -F.cross_entropy(logits.float(), targets, reduction="none").double().sum().item()

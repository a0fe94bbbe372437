"""Language models made by others, opened by name: they embed texts, and say how likely a text is.

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
from torch.nn.utils.rnn import pad_sequence

from dadlm.errors import ConfigError
from dadlm.model.checkpoint import find_device
from dadlm.model.language_model_files import identity, load, locate

_TOKENS = 8192  # of a batch: logits of a large vocabulary take 200 kB for each
_TOKENS_CUDA = 65536  # of one on a GPU with memory for it: fewer leave a small model waiting for its launches
_LOGITS = 2**26  # that are in single precision at a time


@dataclass(frozen=True)
class Scored:
    """What language models say of n texts; None: no model was asked, or it is an encoder."""

    features: np.ndarray | None
    """float32 [n, D]: hidden state of the last token (causal), mean of all at unit length (encoder)."""
    nll: np.ndarray | None
    """float64 [n]: −log p, in nats, of the tokens that were scored: those of the text, after its prompt."""
    tokens: np.ndarray | None
    """int64 [n]: how many tokens that are."""
    truncated: np.ndarray
    """bool [n]: whether the text is longer than what was read."""


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

    def __init__(self, label: str, identity: str, tokenizer: Any, model: Any) -> None:
        """Tables print the label; the identity also tells it from one that lay in the same place before."""
        self.label, self.identity, self._tokenizer, self._model = label, identity, tokenizer, model
        positions = getattr(model.config, "max_position_embeddings", None) or sys.maxsize
        self.window = min(positions, tokenizer.model_max_length, sys.maxsize)  # 10^30 where it is not known

    @torch.inference_mode()
    def score(
        self, texts: Sequence[str], prompts: Sequence[str] | None = None, batch_size: int = 8
    ) -> Scored:
        """Read each text after its prompt, both together truncated to what the model can read.

        Prompt and text are tokenized apart and their ids joined, so that no token spans the boundary and all
        continuations of a prompt have the same context. Without a prompt the first token has nothing before
        it and is not scored, unless the tokenizer itself puts a start token there: MAUVE embeds like this,
        and generative perplexity is usually measured so. An empty text has its prompt's feature or, without
        one, that of the end-of-text token.
        """
        limit = self.window
        contexts = self._contexts(prompts or [""] * len(texts))
        more = self._many(texts, limit + 1)  # one token more shows whether there was more
        whole = [context + ids for context, ids in zip(contexts, more, strict=True)]
        rows = [ids[:limit] or [self._end] for ids in whole]
        starts = np.array([max(len(context), 1) for context in contexts], dtype=np.int64)
        ends = np.array([len(row) for row in rows], dtype=np.int64)
        features, nll = np.zeros((len(rows), self._model.config.hidden_size), np.float32), np.zeros(len(rows))
        for batch, ids, _ in self._batches(rows, batch_size):
            # Without a mask: what pads a row stands behind it, where no token of a causal model looks.
            out = self._model(input_ids=ids, output_hidden_states=True, use_cache=False)
            start, end = (torch.from_numpy(one[batch]).to(ids.device) for one in (starts, ends))
            row = torch.arange(len(batch), device=ids.device)
            features[batch] = out.hidden_states[-1][row, end - 1].float().cpu().numpy()
            place = torch.arange(1, ids.shape[1], device=ids.device)
            scored = (place >= start[:, None]) & (place < end[:, None])
            nats = _nats(out.logits, ids).masked_fill(~scored, 0).double().sum(1)
            nll[batch] = nats.cpu().numpy()
        truncated = np.array([len(ids) > limit for ids in whole], dtype=bool)
        return Scored(features, nll, ends - starts, truncated)

    @property
    def _end(self) -> int:
        return self._tokenizer.eos_token_id or 0

    def _contexts(self, prompts: Sequence[str]) -> list[list[int]]:
        """Tokens before each text, with a start token where the tokenizer puts one."""
        contexts = self._many(prompts, self.window, special=True)
        longest = max(map(len, contexts), default=0)
        if longest >= self.window:
            raise self._too_long(longest)
        return contexts

    def _many(self, texts: Sequence[str], limit: int, special: bool = False) -> list[list[int]]:
        """All at once, which the tokenizer spreads over the processor's cores."""
        options = {"add_special_tokens": special, "truncation": True, "max_length": limit}
        return self._tokenizer(list(texts), **options).input_ids if texts else []

    @property
    def _most_tokens(self) -> int:
        """Of a batch: logits in single precision may take half of what is free on a GPU."""
        if self._model.device.type != "cuda":
            return _TOKENS
        device = self._model.device
        free, _ = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # kept, but unused
        return min(_TOKENS_CUDA, free // (2 * 4 * self._model.config.vocab_size))

    def _too_long(self, length: int) -> ConfigError:
        return ConfigError(
            f"{self.label} reads {self.window} tokens, and a prompt has {length} or more: nothing is left "
            "for the text; shorten the prompt or choose a language model with a longer context"
        )

    def _batches(self, rows: list[list[int]], size: int) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Indices [B], ids [B, L] and mask [B, L], padded on the right, where no token of a row looks."""
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))  # like lengths together: little padding
        while order:
            longest = len(rows[order[0]])
            some = max(1, min(size, self._most_tokens // max(longest, 1)))
            batch, order = order[:some], order[some:]
            ids, mask = (
                pad_sequence([torch.tensor(part, device=self._model.device) for part in parts], True)
                for parts in ([rows[i] for i in batch], [[1] * len(rows[i]) for i in batch])
            )
            yield batch, ids, mask


class Encoder(LanguageModel):
    """A model that reads a text as a whole: it embeds, and has no probability of a text."""

    @torch.inference_mode()
    def score(
        self, texts: Sequence[str], prompts: Sequence[str] | None = None, batch_size: int = 8
    ) -> Scored:
        """Mean of the last hidden states of prompt and text together, at unit length."""
        whole = [prompt + text for prompt, text in zip(prompts or [""] * len(texts), texts, strict=True)]
        rows = self._many(whole, self.window, special=True)
        truncated = [len(ids) > self.window for ids in self._many(whole, self.window + 1, special=True)]
        features = np.zeros((len(rows), self._model.config.hidden_size), np.float32)
        for batch, ids, mask in self._batches(rows, batch_size):
            hidden = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
            mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            features[batch] = F.normalize(mean, dim=1).float().cpu().numpy()
        return Scored(features, None, None, np.array(truncated, dtype=bool))


def _nats(logits: Tensor, ids: Tensor) -> Tensor:
    """[B, L - 1]: −log p of each token of ids [B, L] but the first, under logits [B, L, V]."""
    some = max(1, _LOGITS // logits[0].numel())
    parts = zip(logits[:, :-1].split(some), ids[:, 1:].split(some), strict=True)
    return torch.cat(
        [
            F.cross_entropy(part.flatten(0, 1).float(), targets.flatten(), reduction="none").view_as(targets)
            for part, targets in parts
        ]
    )

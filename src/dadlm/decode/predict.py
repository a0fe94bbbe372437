"""What the model says of a masked block, for each family, with the finished text before it.

A predictor owns the text's keys and values. `prefill` takes the prompt, `predict` answers for the block
in work, `commit` takes a finished block. All four families look the same from outside: an AR model
decodes blocks of one token, MDLM one block as long as its window.

B rows, N block size, K candidates, V vocabulary, D width.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dadlm.decode.cache import Cache
from dadlm.model import Context, Model


@dataclass(frozen=True)
class Prediction:
    """Hidden states [B, N, K, D] of a block's nodes, which of them exist, and their transitions."""

    hidden: Tensor
    active: Tensor
    """[B, N, K]."""
    transition_logp: Tensor
    """[B, N, K, K]."""

    def __getitem__(self, rows: Tensor | slice) -> "Prediction":
        return Prediction(self.hidden[rows], self.active[rows], self.transition_logp[rows])

    def all_logits(self, model: Model) -> Tensor:
        """Logits [B, N, K, V] of every node."""
        return model.head.logits(self.hidden, torch.arange(self.hidden.shape[2], device=self.hidden.device))


def at_path(x: Tensor, path: Tensor) -> Tensor:
    """x [B, N, K, F] at the nodes of a path [B, N]: [B, N, F]."""
    return x.gather(2, path[..., None, None].expand(*path.shape, 1, x.shape[-1])).squeeze(2)


class Predictor(Protocol):
    """See the module's text. `cache_writes` counts the passes that only write keys and values."""

    cache_writes: bool

    def prefill(self, ids: Tensor, length: Tensor) -> None:
        """Take the finished part of the prompts, ids [B, W] of which `length` [B] count."""
        ...

    def predict(self, ids: Tensor, masked: Tensor, first: Tensor) -> Prediction: ...

    def commit(self, ids: Tensor, first: Tensor) -> None:
        """Take a finished block ids [B, N]."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Drop the rows that are not listed."""
        ...


def _single(hidden: Tensor) -> Prediction:
    """One node per position: nothing to choose."""
    B, N, _ = hidden.shape
    certain = hidden.new_zeros(B, N, 1, 1, dtype=torch.float32)
    return Prediction(hidden[:, :, None], torch.ones_like(certain[..., 0], dtype=torch.bool), certain)


class BlockPredictor:
    """BD3LM and DA-DLM: the nodes of the block against cached keys and values of the text before it."""

    cache_writes = True

    def __init__(self, model: Model, rows: int, length: int) -> None:
        self.model, self.cache = model, Cache(model, rows, length)

    def prefill(self, ids: Tensor, length: Tensor) -> None:
        # Rows whose prompt ends earlier write more than they know; it is overwritten before it is seen.
        if longest := int(length.max()):
            self._write(ids[:, :longest], torch.zeros_like(length))

    def predict(self, ids: Tensor, masked: Tensor, first: Tensor) -> Prediction:
        blocks = (ids[:, None], masked[:, None], first[:, None])
        # On CUDA one block fills less than a tile: packing would make it larger and wait for a count.
        denoised = self.model.denoise(*blocks, self._context(), packed=not ids.is_cuda)
        nodes = denoised.nodes
        hidden = nodes.groups(nodes.to_slots(denoised.hidden))[:, 0]
        return Prediction(hidden, nodes.active[:, 0], self.model.transition_logp(denoised)[:, 0])

    def commit(self, ids: Tensor, first: Tensor) -> None:
        self._write(ids, first)

    def keep(self, rows: Tensor) -> None:
        self.cache.keep(rows)

    def _context(self) -> Context:
        return self.cache

    def _write(self, ids: Tensor, first: Tensor) -> None:
        position = first[:, None] + torch.arange(ids.shape[1], device=ids.device)
        self.model.read(ids, self.cache, position=position, only_context=True)


class UncachedBlockPredictor(BlockPredictor):
    """The slow twin: reads the whole text anew for every prediction."""

    def __init__(self, model: Model, rows: int, length: int) -> None:
        self.model = model
        self.text = torch.zeros(rows, length, dtype=torch.int64, device=model.device)

    def keep(self, rows: Tensor) -> None:
        self.text = self.text[rows]

    def _context(self) -> Context:
        context = Context()
        self.model.read(self.text, context, only_context=True)
        return context

    def _write(self, ids: Tensor, first: Tensor) -> None:
        position = first[:, None] + torch.arange(ids.shape[1], device=ids.device)
        self.text.scatter_(1, position, ids)


class CausalPredictor:
    """AR: a block of one token, predicted by reading the token before it, which also caches that one."""

    cache_writes = False

    def __init__(self, model: Model, rows: int, length: int) -> None:
        self.model, self.cache = model, Cache(model, rows, length)
        self.last = torch.zeros(rows, dtype=torch.int64, device=model.device)

    def prefill(self, ids: Tensor, length: Tensor) -> None:
        self.last = ids.gather(1, length[:, None] - 1).squeeze(1)
        before = int(length.max()) - 1
        if before > 0:
            position = torch.arange(before, device=ids.device).expand(len(ids), -1)
            self.model.read(ids[:, :before], self.cache, position=position, only_context=True)

    def predict(self, ids: Tensor, masked: Tensor, first: Tensor) -> Prediction:
        return _single(self.model.read(self.last[:, None], self.cache, position=first[:, None] - 1))

    def commit(self, ids: Tensor, first: Tensor) -> None:
        self.last.copy_(ids[:, 0])

    def keep(self, rows: Tensor) -> None:
        self.cache.keep(rows)
        self.last = self.last[rows]


class WindowPredictor:
    """MDLM: the whole window, prompt included, is one block and sees itself in both directions."""

    cache_writes = False

    def __init__(self, model: Model, window: Tensor) -> None:
        self.model, self.window = model, window

    def prefill(self, ids: Tensor, length: Tensor) -> None:
        """Nothing to keep: the prompt stands in the block as anchors."""

    def predict(self, ids: Tensor, masked: Tensor, first: Tensor) -> Prediction:
        noisy = ids.masked_fill(masked, self.model.config.mask_id)
        # Shorter rows must not see the padding behind their window.
        return _single(self.model.read(noisy, visible=self.window[:, None].expand_as(ids)))

    def commit(self, ids: Tensor, first: Tensor) -> None:
        """The window is the only block."""

    def keep(self, rows: Tensor) -> None:
        self.window = self.window[rows]

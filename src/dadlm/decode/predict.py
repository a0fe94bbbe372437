"""What the model says of the blocks in work, for each family, with the finished text before them.

All four families look the same from outside: an AR model decodes blocks of one token, MDLM one block as long
as its window.

B rows, N block size, K candidates, V vocabulary, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dadlm.decode.samplers import Block
from dadlm.model import Context, Model
from dadlm.model.scores import Denoised


@dataclass(frozen=True)
class Prediction:
    """Hidden states [B, N, K, D] of a block's nodes, which of them exist, and their transitions."""

    hidden: Tensor
    active: Tensor
    """[B, N, K]."""
    transition_logp: Tensor
    """[B, N, K, K]."""
    before: Tensor | None = None
    """[B]: the token before the block, where there are token edges."""

    def __getitem__(self, rows: Tensor | slice) -> "Prediction":
        before = None if self.before is None else self.before[rows]
        return Prediction(self.hidden[rows], self.active[rows], self.transition_logp[rows], before)

    @classmethod
    def together(cls, parts: Sequence["Prediction"]) -> "Prediction":
        """The rows of all parts."""
        if len(parts) == 1:
            return parts[0]
        before = [part.before for part in parts if part.before is not None]
        return cls(
            torch.cat([part.hidden for part in parts]),
            torch.cat([part.active for part in parts]),
            torch.cat([part.transition_logp for part in parts]),
            torch.cat(before) if before else None,
        )

    def logits_of(self, model: Model, row: int, where: Tensor) -> Tensor:
        """Logits [n, K, V] of all nodes at some positions (`where` [N]) of a row."""
        hidden = self.hidden[row, where]
        return model.head.logits(hidden, torch.arange(hidden.shape[1], device=hidden.device))


class Choice(NamedTuple):
    """A path and its tokens, [B, N] each; the last two are filled for samplers that look at tokens."""

    path: Tensor
    tokens: Tensor
    probability: Tensor
    """Untempered, given the token to the left where there are token edges."""
    entropy: Tensor
    """In nats, of the distribution that the token belongs to."""


def at_path(x: Tensor, path: Tensor) -> Tensor:
    """x [B, N, K, F] at the nodes of a path [B, N]: [B, N, F]."""
    if x.shape[2] == 1:
        return x.squeeze(2)
    return x.gather(2, path[..., None, None].expand(*path.shape, 1, x.shape[-1])).squeeze(2)


def predict(model: Model, block: Block, text: Tensor, context: Context | None) -> Prediction:
    """The graphs of blocks that follow `text` [B, L], whose keys and values are in `context`.

    AR: reads the token before the block, which also caches that one; without a context the whole text. MDLM:
    the window, prompt included, is the block and sees itself in both directions. BD3LM, DA-DLM: the nodes of
    the block against the text before it.
    """
    family, first = model.config.family, block.first[:, None]
    if family == "ar" and context is None:
        hidden = model.read(text)
        return _single(hidden.gather(1, (first - 1)[..., None].expand(-1, -1, hidden.shape[-1])))
    if family == "ar":
        last = first - 1
        return _single(model.read(text.gather(1, last), context, position=last, visible=first))
    if family == "mdlm":
        noisy = block.ids.masked_fill(block.masked, model.config.mask_id)
        # Shorter rows must not see the padding behind their window.
        window = block.in_window.sum(1, keepdim=True).expand_as(noisy)
        return _single(model.read(noisy, visible=window))
    return predict_blocks(model, block.ids, block.masked, first, context)


def predict_blocks(
    model: Model, ids: Tensor, masked: Tensor, first: Tensor, context: Context | None
) -> Prediction:
    """The graphs of blocks ids [B, N] that begin at positions first [B, 1] (bd3lm, dadlm)."""
    # On CUDA one block fills less than a tile: packing would make it larger and wait for a count.
    denoised = model.denoise(ids[:, None], masked[:, None], first, context, packed=not ids.is_cuda)
    return prediction_of(model, denoised)


def prediction_of(model: Model, denoised: Denoised) -> Prediction:
    """The graphs of blocks, one in each row."""
    nodes = denoised.nodes
    hidden = nodes.groups(nodes.to_slots(denoised.hidden))[:, 0]
    before = None if model.head.edge is None else denoised.before[:, 0]
    return Prediction(hidden, nodes.active[:, 0], model.transition_logp(denoised)[:, 0], before)


def _single(hidden: Tensor) -> Prediction:
    """One node per position: nothing to choose."""
    B, N, _ = hidden.shape
    certain = hidden.new_zeros(B, N, 1, 1, dtype=torch.float32)
    return Prediction(hidden[:, :, None], torch.ones_like(certain[..., 0], dtype=torch.bool), certain)

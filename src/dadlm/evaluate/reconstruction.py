"""Conditional block reconstruction, the paper's language-modelling metric, row by row.

The same seed gives the same blocks, masks and weights to every model with the same block size, whatever
the batch size, so that rows of two models can be compared in pairs.

R rows, B rows of a batch, G blocks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dadlm.model import Model
from dadlm.noise import NoiseConfig, draw_noise
from dadlm.objective import losses
from dadlm.tokens import Rows


@dataclass(frozen=True)
class RowScores:
    """Nats per token of each row [R], and what the search for a clipped schedule needs of each block."""

    reconstruction: Tensor
    bound: Tensor
    time: Tensor
    """[R·G]: noise level of each block."""
    fraction: Tensor
    """[R·G]: share of the block that was masked."""
    block_loss: Tensor
    """[R·G]: weighted loss per token of the block."""

    @property
    def gap(self) -> float:
        """What the graph adds: the bound minus the reconstruction; 0 for factorised models."""
        return float((self.bound - self.reconstruction).mean())


@torch.no_grad()
def score_rows(
    model: Model, rows: Rows, *, count: int | None = None, seed: int = 0, batch_size: int = 16
) -> RowScores:
    """Score the first `count` rows once each, with times over the whole range, stratified over all rows."""
    count = len(rows) if count is None else min(count, len(rows))
    training, batches = model.training, []
    model.eval()
    try:
        for first in range(0, count, batch_size):
            index = torch.arange(first, min(first + batch_size, count))
            batches.append(_score(model, rows.batch(index), index, count, seed))
    finally:
        model.train(training)
    return RowScores(*(torch.cat(parts) for parts in zip(*batches, strict=True)))


def _score(model: Model, ids: Tensor, index: Tensor, count: int, seed: int) -> tuple[Tensor, ...]:
    config, (B, L) = model.config, ids.shape
    noise = None
    if config.family != "ar":
        noise = draw_noise(
            NoiseConfig(),
            seed=seed,
            step=0,
            rows=index.to(model.device),
            batch_rows=count,
            length=L,
            block_size=config.block,
        )
    loss = losses(model, ids.to(model.device), noise)
    per_row = [part.sum(1).double().cpu() / (L - 1) for part in (loss.reconstruction, loss.bound)]
    if noise is None:
        return *per_row, *(torch.zeros(0) for _ in range(3))
    fraction = noise.masked.view(B, -1, config.block).float().mean(-1)
    blocks = (noise.time, fraction, loss.reconstruction / config.block)
    return *per_row, *(part.flatten().cpu() for part in blocks)

"""Rows scored by a model under random masks: what validation and every evaluation of likelihood reads.

A mask depends on the seed, the row and the number of rows, never on the batch: the same for every model
with the same block size.

R rows, B rows of a batch, L tokens of a row, G blocks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dadlm.errors import CheckpointError
from dadlm.model import Model, eval_mode
from dadlm.noise import NoiseConfig, draw_noise
from dadlm.objective import CHAINS, losses
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
    graph_gap: Tensor
    """[R]: what the graph adds beside token edges (`Losses.graph_gap`), in nats per token."""
    ar_nll: Tensor
    """[R]: the exact value of the model's mode ar; empty if it has none beside diffusion."""

    @property
    def gap(self) -> float:
        """What graph and token edges add: the bound minus the reconstruction; 0 for factorised models."""
        return float((self.bound - self.reconstruction).mean())


def score_rows(
    model: Model, rows: Rows, *, count: int | None = None, seed: int = 0, batch_size: int = 16
) -> RowScores:
    """Score the first `count` rows once each, with times over the whole range, stratified over all rows."""
    count = len(rows) if count is None else min(count, len(rows))
    batches = []
    with eval_mode(model), torch.no_grad():
        for first in range(0, count, batch_size):
            index = torch.arange(first, min(first + batch_size, count))
            ids, both = rows.batch(index), model.config.is_both
            batches.append(score_batch(model, ids, index, count, seed, next_tokens=both))
    return RowScores(*(torch.cat(parts) for parts in zip(*batches, strict=True)))


def score_batch(
    model: Model,
    ids: Tensor,
    index: Tensor,
    count: int,
    seed: int,
    step: int = 0,
    chains: int = CHAINS,
    next_tokens: bool = False,
) -> tuple[Tensor, ...]:
    """What `RowScores` holds, for some of the rows; another step draws other noise. `chains`: of the bound of
    models with token edges; see `losses` for `next_tokens`."""
    (B, L), block = ids.shape, block_of(model, ids.shape[1])
    noise = None
    if model.config.family != "ar":
        rows = index.to(model.device)
        noise = draw_noise(
            NoiseConfig(), seed=seed, step=step, rows=rows, batch_rows=count, length=L, block_size=block
        )
    loss = losses(model, ids.to(model.device), noise, chains=chains, seed=seed, next_tokens=next_tokens)
    parts = (loss.reconstruction, loss.bound, loss.graph_gap)
    *per_row, graph_gap = (part.sum(1).double().cpu() / (L - 1) for part in parts)
    ar_nll = torch.zeros(0) if loss.next_token is None else loss.next_token.sum(1).double().cpu() / (L - 1)
    if noise is None:
        return *per_row, *(torch.zeros(0) for _ in range(3)), graph_gap, ar_nll
    fraction = noise.masked.view(B, -1, block).float().mean(-1)
    blocks = (noise.time, fraction, loss.reconstruction / block)
    return *per_row, *(part.flatten().cpu() for part in blocks), graph_gap, ar_nll


def block_of(model: Model, length: int) -> int:
    """Tokens that are masked together; a row of an MDLM is one block, also where it is short."""
    return length if model.config.family == "mdlm" else model.config.block


def finite(values: Tensor) -> Tensor:
    """The values, refused where some are not finite."""
    if not bool(values.isfinite().all()):
        raise CheckpointError("the model gives a text no finite probability: its weights are damaged")
    return values

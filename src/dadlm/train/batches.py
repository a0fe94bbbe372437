"""Which rows a step takes and how they are masked: functions of (seed, step, place in the batch), however the
batch is split. Steps and rows are counted from the first stage of a route on; everything is drawn on the CPU.

B rows of a part, L their length."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dadlm.errors import ConfigError
from dadlm.model import ModelConfig
from dadlm.noise import Noise, NoiseConfig, draw_noise
from dadlm.tokens import Rows, training_rows
from dadlm.train.config import RunConfig
from dadlm.train.pair_rows import PairRows
from dadlm.train.processes import Ranks
from dadlm.train.state import Stream


class StepInputs(NamedTuple):
    """What a micro-batch is computed from."""

    ids: Tensor
    """[B, L]."""
    noise: Noise | None
    """None for AR."""
    tokens: Tensor
    """Number of tokens that the whole step predicts, over all processes: its loss is divided by it."""
    loss_mask: Tensor | None = None
    """[B, L]: the positions that are learned; None: all."""


@dataclass(frozen=True)
class Batches:
    """Batches of rows of text, all of one length, or of pairs of texts, of which the second is learned."""

    run: RunConfig
    rows: Rows | PairRows
    start: Stream = field(default_factory=Stream)
    """Where the stream stood before step 0."""

    @property
    def size_steps(self) -> int:
        """`steps` of `nodes.padded_sizes`. The times of texts are evenly distributed, so two or three sizes
        occur; summaries vary in length, and more sizes would save less than it takes to compile them."""
        return 8 if isinstance(self.rows, PairRows) else 64

    def tokens_read(self, step: int) -> int:
        if isinstance(self.rows, PairRows):
            return self.rows.batch(self.start.steps + step, self.run.train.seed).ids.numel()
        return self.run.train.batch_size * self.rows.context

    def take(self, step: int, noise: NoiseConfig, part: Tensor) -> StepInputs:
        """The rows at places `part` of a step's batch."""
        train, rows, counted = self.run.train, self.rows, self.start.steps + step
        how = {"seed": train.seed, "batch_rows": train.batch_size, "masks_per_row": train.masks_per_row}
        if isinstance(rows, PairRows):
            batch = rows.batch(counted, train.seed)
            ids, loss_mask, tokens = batch.ids[part], batch.loss_mask[part], batch.loss_mask.sum()
            how["most_blocks"] = batch.most_blocks
        else:
            chosen = training_rows(rows, step, train.batch_size, train.seed, self.start.rows)[part]
            ids = rows.batch(chosen)
            loss_mask, tokens = None, torch.tensor(train.batch_size * (rows.context - 1))
        drawn = noise_of(self.run.model, noise, ids, loss_mask, step=counted, rows=part, **how)
        return StepInputs(ids, drawn, tokens, loss_mask)


def noise_of(
    model: ModelConfig, noise: NoiseConfig, ids: Tensor, loss_mask: Tensor | None, **how: Any
) -> Noise | None:
    """Masks of rows ids [B, L], within the loss mask; None for AR. See `draw_noise` for the rest."""
    if model.family == "ar":
        return None
    length = ids.shape[1]
    block_size = length if model.family == "mdlm" else model.block
    return draw_noise(noise, length=length, block_size=block_size, maskable=loss_mask, **how)


def parts_of(run: RunConfig, ranks: Ranks) -> list[Tensor]:
    """Places in the batch of each of this process's micro-batches."""
    train = run.train
    if train.batch_size % (train.accumulate * ranks.size):
        raise ConfigError(
            f"batch_size {train.batch_size} cannot be cut into accumulate {train.accumulate} equal parts "
            f"for each of {ranks.size} processes; change --train.accumulate or the number of processes"
        )
    return list(torch.arange(train.batch_size).view(train.accumulate, ranks.size, -1)[:, ranks.rank])

"""Which rows a step takes and how they are masked: functions of (seed, step, place in the batch), not states.

However a batch is divided, into micro-batches or over processes, together the parts are the same rows under
the same noise. Everything is drawn on the CPU, whatever the device.

B rows of a part, L their length.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from dadlm.errors import ConfigError
from dadlm.noise import Noise, NoiseConfig, draw_noise
from dadlm.tokens import Rows, training_rows
from dadlm.train.config import RunConfig
from dadlm.train.pair_rows import PairBatch, PairRows
from dadlm.train.processes import Ranks


class StepInputs(NamedTuple):
    """What a micro-batch is computed from."""

    ids: Tensor
    """[B, L]."""
    noise: Noise | None
    """None for AR."""
    tokens: Tensor
    """Tokens that the whole step predicts, over all processes: what its loss is divided by."""
    loss_mask: Tensor | None = None
    """[B, L]: the positions that are learned; None: all."""


@dataclass(frozen=True)
class Batches:
    """Of rows of text, all of one length."""

    run: RunConfig
    rows: Rows
    size_steps: ClassVar[int] = 64
    """Of `nodes.padded_sizes`: times are evenly distributed, so two or three sizes occur."""

    def tokens_read(self, step: int) -> int:
        return self.run.train.batch_size * self.rows.context

    def take(self, step: int, noise: NoiseConfig, part: Tensor) -> StepInputs:
        """The rows at places `part` of a step's batch."""
        model, train = self.run.model, self.run.train
        ids = self.rows.batch(training_rows(self.rows, step, train.batch_size, train.seed)[part])
        tokens, drawn = torch.tensor(train.batch_size * (self.rows.context - 1)), None
        if model.family != "ar":
            drawn = draw_noise(
                noise,
                seed=train.seed,
                step=step,
                rows=part,
                batch_rows=train.batch_size,
                length=self.rows.context,
                block_size=model.block,
                masks_per_row=train.masks_per_row,
            )
        return StepInputs(ids, drawn, tokens)


@dataclass(frozen=True)
class PairBatches:
    """Of pairs of texts, of which the second is learned. A step's rows have the length of their bucket."""

    run: RunConfig
    rows: PairRows
    size_steps: ClassVar[int] = 8
    """How much of a batch is learned varies: more sizes would save less than it takes to compile them."""

    def tokens_read(self, step: int) -> int:
        return self.rows.batch(step, self.run.train.seed).ids.numel()

    def take(self, step: int, noise: NoiseConfig, part: Tensor) -> StepInputs:
        train = self.run.train
        batch = self.rows.batch(step, train.seed)
        drawn = self.noise_of(batch, noise, step, part, train.seed, train.masks_per_row)
        return StepInputs(batch.ids[part], drawn, batch.loss_mask.sum(), batch.loss_mask[part])

    def noise_of(
        self, batch: PairBatch, noise: NoiseConfig, step: int, part: Tensor, seed: int, masks_per_row: int = 1
    ) -> Noise | None:
        """Of the rows at places `part` of a batch: masks where they are learned (none for AR)."""
        model, length = self.run.model, batch.ids.shape[1]
        if model.family == "ar":
            return None
        return draw_noise(
            noise,
            seed=seed,
            step=step,
            rows=part,
            batch_rows=len(batch.ids),
            length=length,
            block_size=length if model.family == "mdlm" else model.block,
            maskable=batch.loss_mask[part],
            most_blocks=batch.most_blocks,
            masks_per_row=masks_per_row,
        )


def parts_of(run: RunConfig, ranks: Ranks) -> list[Tensor]:
    """Places in the batch of each of this process' micro-batches."""
    train = run.train
    if train.batch_size % (train.accumulate * ranks.size):
        raise ConfigError(
            f"batch_size {train.batch_size} cannot be cut into accumulate {train.accumulate} equal parts "
            f"for each of {ranks.size} processes; change --train.accumulate or the number of processes"
        )
    return list(torch.arange(train.batch_size).view(train.accumulate, ranks.size, -1)[:, ranks.rank])

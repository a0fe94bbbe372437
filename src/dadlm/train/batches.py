"""Which rows a step takes and how they are masked: functions of (seed, step, place in the batch), not states.

However a batch is cut, into micro-batches or over processes, together the parts are the same rows under the
same noise. Everything is drawn on the CPU, whatever the device.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dadlm.errors import ConfigError
from dadlm.noise import Noise, NoiseConfig, draw_noise
from dadlm.tokens import Rows, training_rows
from dadlm.train.config import RunConfig
from dadlm.train.ranks import Ranks


@dataclass(frozen=True)
class Batches:
    run: RunConfig
    rows: Rows

    @property
    def tokens(self) -> int:
        """Tokens that a step predicts, over all processes: what its loss is divided by."""
        return self.run.train.batch_size * (self.rows.context - 1)

    def take(self, step: int, noise: NoiseConfig, part: Tensor) -> tuple[Tensor, Noise | None]:
        """Ids of the rows at places `part` of a step's batch, and their noise (none for AR)."""
        model, train = self.run.model, self.run.train
        chosen = training_rows(self.rows, step, train.batch_size, train.seed)
        ids = self.rows.batch(chosen[part])
        if model.family == "ar":
            return ids, None
        return ids, draw_noise(
            noise,
            seed=train.seed,
            step=step,
            rows=part,
            batch_rows=train.batch_size,
            length=self.rows.context,
            block_size=model.block,
            block_share=1.0 if model.family == "mdlm" else train.block_share,
        )

    def parts(self, ranks: Ranks) -> list[Tensor]:
        """Places in the batch of each of this process' micro-batches."""
        train = self.run.train
        if train.batch_size % (train.accumulate * ranks.size):
            raise ConfigError(
                f"batch_size {train.batch_size} cannot be cut into accumulate {train.accumulate} equal parts "
                f"for each of {ranks.size} processes; change --train.accumulate or the number of processes"
            )
        return list(torch.arange(train.batch_size).view(train.accumulate, ranks.size, -1)[:, ranks.rank])

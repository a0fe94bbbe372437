"""Which rows a step takes and how they are masked: functions of (seed, step, place in the batch), not states.

However a batch is cut, into micro-batches or over processes, together the parts are the same rows under the
same noise. Everything is drawn on the CPU, whatever the device.

B rows of a part, L their length.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dadlm.errors import ConfigError
from dadlm.noise import Noise, NoiseConfig, draw_noise
from dadlm.tokens import Rows, training_rows
from dadlm.train.config import RunConfig
from dadlm.train.pair_rows import Batch, PairRows
from dadlm.train.ranks import Ranks


@dataclass(frozen=True)
class Counted:
    """What of a step's rows counts."""

    tokens: Tensor
    """Tokens that the whole step predicts, over all processes: what its loss is divided by."""
    learned: Tensor | None = None
    """[B, L]: the positions of a part that are learned; None: all."""

    def to(self, device: torch.device) -> "Counted":
        return Counted(self.tokens.to(device), None if self.learned is None else self.learned.to(device))


@dataclass(frozen=True)
class Batches:
    """Of rows of text, all of one length."""

    run: RunConfig
    rows: Rows
    sizes: ClassVar[int] = 64
    """Of rooms (`nodes.make_rooms`): times are spread evenly, so two or three of them occur."""

    def counted(self, step: int, part: Tensor) -> Counted:
        """Of the rows at places `part` of a step's batch."""
        return Counted(torch.tensor(self.run.train.batch_size * (self.rows.context - 1)))

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
            copies=train.masks,
        )


@dataclass(frozen=True)
class PairBatches:
    """Of pairs of texts, of which the second is learned. A step's rows have the length of their bucket."""

    run: RunConfig
    rows: PairRows
    sizes: ClassVar[int] = 8
    """How much of a batch is learned varies: more sizes would save less than it takes to compile them."""

    def counted(self, step: int, part: Tensor) -> Counted:
        learned = self.rows.batch(step, self.run.train.seed).learned
        return Counted(learned.sum(), learned[part])

    def take(self, step: int, noise: NoiseConfig, part: Tensor) -> tuple[Tensor, Noise | None]:
        batch, seed = self.rows.batch(step, self.run.train.seed), self.run.train.seed
        return batch.ids[part], self.noise_of(batch, noise, step, part, seed, self.run.train.masks)

    def noise_of(
        self, batch: Batch, noise: NoiseConfig, step: int, part: Tensor, seed: int, copies: int = 1
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
            maskable=batch.learned[part],
            most_blocks=batch.most_blocks,
            copies=copies,
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

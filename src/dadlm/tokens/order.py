"""The order in which training sees rows.

It is a function, not a state: which rows a step takes follows from (seed, step) alone. A resumed run
needs nothing remembered, and however a step is split into micro-batches or processes, together they see the
same rows.

B rows of a batch.
"""

from collections.abc import Sized

import torch
from torch import Tensor

from dadlm.counter import permute
from dadlm.tokens.mixture import Mixture


def training_rows(rows: Sized, step: int, batch_size: int, seed: int) -> Tensor:
    """Which rows training step `step` takes, int64 [B]; each epoch has every row once, in its own order.

    Epochs follow one another without a gap: a batch may end one and begin the next. Each source of a mixture
    has its own epochs.
    """
    place = step * batch_size + torch.arange(batch_size, dtype=torch.int64)
    if isinstance(rows, Mixture):
        return rows.order(place, seed)
    size = len(rows)
    return permute(place % size, size, seed, place // size)

"""How sure a mean is: percentile bootstrap over rows."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Interval:
    """A mean and its 95% interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.4f} [{self.low:.4f}, {self.high:.4f}]"


def bootstrap(values: Tensor, draws: int = 2000, seed: int = 0) -> Interval:
    """The mean of per-row values [R] and the interval of means of resampled rows.

    For a paired comparison pass the differences row by row: what the rows share cancels.
    """
    values = values.double().cpu()
    generator = torch.Generator().manual_seed(seed)
    means = torch.stack(
        [values[torch.randint(len(values), (len(values),), generator=generator)].mean() for _ in range(draws)]
    )
    low, high = means.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Interval(float(values.mean()), low, high)

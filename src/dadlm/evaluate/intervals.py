"""How sure a number is: percentile bootstrap of a mean over rows, Wilson's interval of a share."""

from dataclasses import dataclass

import torch
from torch import Tensor

FEW = 10
_Z = 1.959963984540054  # 97.5% quantile of the normal distribution


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


def caution(count: int, what: str = "rows") -> list[str]:
    """What has to be said beside a bootstrap interval of few values."""
    if count >= FEW:
        return []
    return [f"Only {count} {what}: so few do not show how much they vary, and the intervals are too narrow."]


def wilson(wins: int, total: int) -> Interval:
    """The share wins / total and Wilson's score interval; nothing counted: anything is possible."""
    if total == 0:
        return Interval(0.5, 0.0, 1.0)
    share, slack = wins / total, _Z**2 / total
    centre = (share + slack / 2) / (1 + slack)
    half = _Z * (share * (1 - share) / total + slack / (4 * total)) ** 0.5 / (1 + slack)
    # At the ends the formula gives 0 and 1 exactly, floating point almost.
    return Interval(share, centre - half if wins else 0.0, centre + half if wins < total else 1.0)

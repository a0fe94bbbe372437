"""Confidence intervals: the bootstrap of a mean over rows or groups of rows, and Wilson's of a share."""

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


def bootstrap(
    values: Tensor,
    groups: Tensor | None = None,
    draws: int = 2000,
    seed: int = 0,
    *,
    per: Tensor | None = None,
) -> Interval:
    """The mean of per-row values [R] and the interval of means of resampled groups of rows.

    Rows with the same id in `groups` [R], such as parts of one document, are not independent, so they are
    drawn together; None: each row by itself. With `per` [R] it is Σ values / Σ per instead of the mean. For a
    paired comparison pass the differences of the rows.
    """
    values = values.double().cpu()
    per = torch.ones_like(values) if per is None else per.double().cpu()
    above, below = values, per
    if groups is not None:
        ids, group = groups.cpu().unique(return_inverse=True)
        above, below = (torch.zeros(len(ids)).double().index_add(0, group, part) for part in (values, per))
    generator = torch.Generator().manual_seed(seed)
    drawn = (torch.randint(len(above), (len(above),), generator=generator) for _ in range(draws))
    # A ratio of sums, because groups differ in size.
    ratios = torch.stack([above[index].sum() / below[index].sum() for index in drawn])
    low, high = ratios.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Interval(float(values.sum() / per.sum()), low, high)


def caution(count: int, what: str = "rows") -> list[str]:
    """The warning beside a bootstrap interval of few values, or of few groups of them."""
    if count >= FEW:
        return []
    return [f"Only {count} {what}: so few do not show how much they vary, and the intervals are too narrow."]


def wilson(wins: int, total: int) -> Interval:
    """The share wins / total and Wilson's score interval; all of [0, 1] where nothing was counted."""
    if total == 0:
        return Interval(0.5, 0.0, 1.0)
    share, slack = wins / total, _Z**2 / total
    centre = (share + slack / 2) / (1 + slack)
    half = _Z * (share * (1 - share) / total + slack / (4 * total)) ** 0.5 / (1 + slack)
    # At the ends the formula gives 0 and 1 exactly, floating point almost.
    return Interval(share, centre - half if wins else 0.0, centre + half if wins < total else 1.0)

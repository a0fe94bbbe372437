"""Noise schedules: how likely a token is masked at time t, and what a prediction made there weighs.

With p(t) = 1 - alpha(t), the NELBO weighs the log-likelihood of the masked tokens by p'(t) / p(t).
A schedule is these two functions and nothing else.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Schedule:
    """The masking probability at time t in (0, 1], and the weight of the loss there."""

    mask_probability: Callable[[Tensor], Tensor]
    weight: Callable[[Tensor], Tensor]


def _cosine_weight(t: Tensor) -> Tensor:
    # sin(x) / (1 - cos(x)) = cot(x / 2), which stays exact near zero.
    return (math.pi / 2) / (t * (math.pi / 4)).tan()


SCHEDULES: dict[str, Schedule] = {
    "loglinear": Schedule(lambda t: t, lambda t: 1 / t),
    "cosine": Schedule(lambda t: 2 * (t * (math.pi / 4)).sin().square(), _cosine_weight),
    "square": Schedule(lambda t: t.square(), lambda t: 2 / t),
    "square-root": Schedule(lambda t: t.sqrt(), lambda t: 0.5 / t),
}

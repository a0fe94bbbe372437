"""The clipped schedule: the interval of times in which the weighted loss of blocks varies least, found in the
losses of a validation. Knows nothing of masks: `masking` draws them within the interval."""

from torch import Tensor

from dadlm.noise.masking import FLOOR

_LEAST = 16  # blocks in an interval, or its variance is not trusted


def candidate_intervals() -> list[tuple[float, float]]:
    """Widths 0.5 to 0.9, slid by 0.05; the lower end is never 0, where the weight diverges."""
    return [
        (max(round(place * 0.05, 2), FLOOR), round(place * 0.05 + width, 2))
        for width in (0.5, 0.6, 0.7, 0.8, 0.9)
        for place in range(round((1 - width) / 0.05) + 1)
    ]


def best_interval(time: Tensor, fraction: Tensor, loss: Tensor) -> tuple[float, float]:
    """The interval with the least variance, from one entry per block with times over the whole range."""
    scores = {}
    for low, high in candidate_intervals():
        inside = (time >= low) & (time <= high) & (fraction <= high)
        if low > FLOOR:
            inside &= fraction >= low
        if int(inside.sum()) >= _LEAST:
            scores[low, high] = float(loss[inside].double().var())
    return min(scores, key=lambda interval: scores[interval]) if scores else (FLOOR, 1.0)

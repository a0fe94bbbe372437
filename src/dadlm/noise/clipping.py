"""The clipped schedule: find the interval of times in which the training loss varies least.

One pass with times over the whole range serves all intervals: the blocks that fall into an interval stand
for those that the clipped schedule would draw there (nearly: times near the ends fall out a little more
often than its redraws would have it).
"""

from torch import Tensor

from dadlm.noise.masking import FLOOR


def candidate_intervals() -> list[tuple[float, float]]:
    """Widths 0.5 to 0.9, slid by 0.05; the lower end is never 0, where the weight diverges."""
    intervals = []
    for width in (0.5, 0.6, 0.7, 0.8, 0.9):
        places = round((1 - width) / 0.05) + 1
        for place in range(places):
            low = round(place * 0.05, 2)
            intervals.append((max(low, FLOOR), round(low + width, 2)))
    return intervals


def best_interval(time: Tensor, fraction: Tensor, loss: Tensor, least: int = 16) -> tuple[float, float]:
    """The interval with the smallest variance of the per-block weighted mean loss.

    time, fraction (masked share) and loss are flat, one entry per block. Intervals seen fewer than
    `least` times are not trusted; with none left the whole range is kept.
    """
    scores = {}
    for low, high in candidate_intervals():
        inside = (time >= low) & (time <= high) & (fraction <= high)
        if low > FLOOR:
            inside &= fraction >= low
        if int(inside.sum()) >= least:
            scores[low, high] = float(loss[inside].double().var())
    return min(scores, key=lambda interval: scores[interval]) if scores else (FLOOR, 1.0)

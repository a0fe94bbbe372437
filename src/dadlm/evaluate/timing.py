"""Times of several models: taken in turns, and whether they are reliable."""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch

from dadlm.model import Model

_TURN = 5  # updates of one model before those of the next
_WIDE = 0.25  # between the quartiles, of the median


def alternately(timers: Mapping[str, Iterator[float]], steps: int, warmup: int) -> dict[str, list[float]]:
    """`steps` times of each timer after `warmup` others, a few of each in turn: A B A B."""
    took: dict[str, list[float]] = {name: [] for name in timers}
    for timer in timers.values():
        deque(islice(timer, warmup), maxlen=0)
    for done in range(0, steps, _TURN):
        for name, timer in timers.items():
            took[name] += islice(timer, min(_TURN, steps - done))
    return took


def other_work(models: Iterable[Model]) -> str | None:
    """What other load spoils times on this CPU, in words."""
    if any(model.device.type != "cpu" for model in models):
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if (threads := torch.get_num_threads()) > cores:
        return f"{threads} threads on {cores} cores (set OMP_NUM_THREADS)"
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return f"a load average of {load:.1f} on {cores} cores before the first step" if load > cores else None


def doubts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why the times of models (rows of a result) may be unreliable."""
    lines = [
        f"there was other work, {one}" for one in dict.fromkeys(row.get("other_work") for row in rows) if one
    ]
    for row in rows:
        low, high = row.get("ms_quartiles", (0, 0))  # results from before there were any have none
        if (spread := (high - low) / row["ms_median"]) > _WIDE:
            lines.append(f"half of those of {row['model']['name']} lie {spread:.0%} of the median apart")
    return [f"Do not rely on these times: {line}." for line in lines]

"""Time on any device: synchronised around what is measured, medians rather than means."""

import statistics
import time
from collections.abc import Callable

import torch


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed_ms(work: Callable[[], object], device: torch.device) -> float:
    synchronise(device)
    start = time.perf_counter()
    work()
    synchronise(device)
    return (time.perf_counter() - start) * 1e3


def median_ms(work: Callable[[], object], device: torch.device, runs: int = 10, warmup: int = 3) -> float:
    for _ in range(warmup):
        work()
    return statistics.median(timed_ms(work, device) for _ in range(runs))

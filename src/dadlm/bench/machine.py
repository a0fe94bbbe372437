"""The machine that a benchmark runs on: its description, its clock, and its measured ceilings."""

import gc
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from dadlm.errors import ConfigError


class Machine:
    """A device, its dtype and its two ceilings, measured on construction.

    `tflops`: TFLOP/s of a large matrix product; `gbytes`: GB/s read and written by copying a large tensor.
    """

    def __init__(self, device: str | torch.device, dtype: torch.dtype | None = None) -> None:
        self.device = torch.device(device)
        self.is_cuda = self.device.type == "cuda"
        self.dtype = dtype or (torch.bfloat16 if self.is_cuda else torch.float32)
        size = 8192 if self.is_cuda else 1024
        a, b = (torch.randn(size, size, device=self.device, dtype=self.dtype) for _ in range(2))
        out = torch.empty_like(a)
        self.tflops = 2 * size**3 / self.median_ms(lambda: torch.matmul(a, b, out=out)) / 1e9
        x = torch.empty((1 << 30) if self.is_cuda else (1 << 26), device=self.device, dtype=torch.uint8)
        y = torch.empty_like(x)
        self.gbytes = 2 * x.numel() / self.median_ms(lambda: y.copy_(x)) / 1e6

    def synchronise(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def timed_ms(self, work: Callable[[], object]) -> float:
        self.synchronise()
        start = time.perf_counter()
        work()
        self.synchronise()
        return (time.perf_counter() - start) * 1e3

    def median_ms(self, work: Callable[[], object], runs: int = 10, warmup: int = 3) -> float:
        for _ in range(warmup):
            work()
        return statistics.median(self.timed_ms(work) for _ in range(runs))

    def launches(self, work: Callable[[], object]) -> int | None:
        """Kernels, copies and fills launched on the device; None where there is no count."""
        self.synchronise()
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            work()
            self.synchronise()
        on_device = [one.count for one in seen.key_averages() if one.device_type.name == "CUDA"]
        return sum(on_device) or None

    def floor_ms(self, flops: float, bytes_: float) -> float:
        """The time that arithmetic or memory traffic alone would take, whichever is longer."""
        return max(flops / self.tflops / 1e9, bytes_ / self.gbytes / 1e6)

    def reset_peak(self) -> None:
        """Do not count memory of earlier measurements."""
        if self.is_cuda:
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def held_mib(self) -> float | None:
        """Memory that tensors take now."""
        return torch.cuda.memory_allocated(self.device) / 2**20 if self.is_cuda else None

    def peak_mib(self) -> float | None:
        return torch.cuda.max_memory_allocated(self.device) / 2**20 if self.is_cuda else None

    def peak_of(self, work: Callable[[], object]) -> float | None:
        """Peak memory of tensors in MiB, on a GPU."""
        if not self.is_cuda:
            return None
        self.reset_peak()
        work()
        return self.peak_mib()

    def describe(self) -> dict[str, Any]:
        """Device, versions, commit and ceilings, for the head of a result file."""
        versions = {"torch": torch.__version__, "python": platform.python_version()}
        with suppress(PackageNotFoundError):
            versions["triton"] = version("triton")
        ceilings = {"tflops": self.tflops, "gbytes": self.gbytes}
        return {
            "device": torch.cuda.get_device_name(self.device) if self.is_cuda else _processor(),
            "threads": torch.get_num_threads(),
            "dtype": str(self.dtype).removeprefix("torch."),
            "versions": versions,
            "commit": _commit(),
            "ceilings": {key: float(f"{value:.4g}") for key, value in ceilings.items()},
        }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _commit() -> str | None:
    """The commit of the source tree, if git knows one."""

    def git(*words: str) -> str:
        words = ("git", "-C", str(Path(__file__).parent), *words)
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("+changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def check_counts(**counts: int | tuple[int, ...]) -> None:
    for name, given in counts.items():
        if any(count < 1 for count in (given if isinstance(given, tuple) else (given,))):
            raise ConfigError(f"{name} must be at least 1, got {given}")


def log(row: Mapping[str, Any]) -> None:
    """One line about a measurement, on standard error: results go to standard output."""
    known = ((key, value) for key, value in row.items() if value is not None)
    words = (f"{key} {value:.4f}" if isinstance(value, float) else f"{value}" for key, value in known)
    print("  ".join(words), file=sys.stderr, flush=True)

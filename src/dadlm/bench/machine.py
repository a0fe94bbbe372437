"""The machine a benchmark runs on: what it is, its clock, and the ceilings measured there and then."""

import gc
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

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


def reset_peak(device: torch.device) -> None:
    """Memory of earlier measurements must not count."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_mib(device: torch.device) -> float | None:
    return torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else None


@dataclass(frozen=True)
class Ceilings:
    """What the device reaches on the two things everything is made of."""

    tflops: float
    """TFLOP/s of a large matrix product in the benchmark's dtype."""
    gbytes: float
    """GB/s read and written by copying a large tensor."""

    def floor_ms(self, flops: float, bytes_: float) -> float:
        """The time that arithmetic or memory alone would take, whichever is longer."""
        return max(flops / self.tflops / 1e9, bytes_ / self.gbytes / 1e6)


def measure_ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings:
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    product = median_ms(lambda: torch.matmul(a, b, out=out), device)
    x = torch.empty((1 << 30) if device.type == "cuda" else (1 << 26), device=device, dtype=torch.uint8)
    y = torch.empty_like(x)
    copy = median_ms(lambda: y.copy_(x), device)
    return Ceilings(tflops=2 * size**3 / product / 1e9, gbytes=2 * x.numel() / copy / 1e6)


def describe_machine(device: torch.device, dtype: torch.dtype, ceilings: Ceilings) -> dict[str, Any]:
    """Device, versions, commit and ceilings, for the head of a result file."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    with suppress(PackageNotFoundError):
        versions["triton"] = version("triton")
    return {
        "device": name,
        "threads": torch.get_num_threads(),
        "dtype": str(dtype).removeprefix("torch."),
        "versions": versions,
        "commit": _commit(),
        "ceilings": {key: float(f"{value:.4g}") for key, value in asdict(ceilings).items()},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _commit() -> str | None:
    """The commit of the source tree, if it is one."""

    def git(*words: str) -> str:
        words = ("git", "-C", str(Path(__file__).parent), *words)
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("+changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def log(row: Mapping[str, Any]) -> None:
    """One line for what was just measured, on standard error: results go to standard output."""
    words = (f"{key} {value:.4f}" if isinstance(value, float) else f"{value}" for key, value in row.items())
    print("  ".join(words), file=sys.stderr, flush=True)

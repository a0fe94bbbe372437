"""The processes of one run, as torchrun starts them; the lock that keeps a second run out of a run's folder;
the signals that ask training to stop. How weights and gradients are distributed is in `distributed.py`."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from dadlm.errors import ConfigError
from dadlm.model import find_device
from dadlm.model.files import lock
from dadlm.train.config import TrainConfig

T = TypeVar("T")
_PATIENCE = timedelta(days=1)  # the first process of a machine may have to prepare a large text


@dataclass(frozen=True)
class Ranks:
    """Where this process stands among those of its run; by default it is alone."""

    rank: int = 0
    size: int = 1
    local: int = 0
    """Its number on its machine, which is also that of its GPU."""
    group: "dist.ProcessGroup | None" = None
    """For messages between CPUs, which do not wait for a device; None if there is only one process."""

    @property
    def first(self) -> bool:
        """The one that writes files and logs."""
        return self.rank == 0

    def wait(self) -> None:
        """Until all processes have come here."""
        if self.group is not None:
            dist.barrier(self.group)

    def any(self, flag: bool) -> bool:
        """Whether it is true in any process."""
        if self.group is None:
            return flag
        found = torch.tensor(int(flag))
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.group)
        return bool(found)

    def broadcast(self, value: T) -> T:
        """What the first process has: numbers, in whose last bit the others' may differ, or text."""
        sent = [value]
        if self.group is not None:
            dist.broadcast_object_list(sent, 0, group=self.group)
        return sent[0]

    def sum(self, tensor: Tensor) -> Tensor:
        """Add up a tensor over all processes, in place."""
        if self.group is not None:
            dist.all_reduce(tensor)
        return tensor

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """The first process of a machine runs the block before the others, which find its files on disk."""
        if self.local:
            self.wait()
        yield
        if not self.local:
            self.wait()


ALONE = Ranks()


@contextmanager
def joined(train: TrainConfig) -> Iterator[Ranks]:
    """Find the other processes that torchrun has started with this one; alone if it has not."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if "RANK" not in os.environ or (size == 1 and train.parallel == "ddp"):
        yield ALONE
        return
    local, device = int(os.environ.get("LOCAL_RANK", "0")), find_device(train.device)
    if device.type == "cuda":
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        group = dist.new_group(backend="gloo", timeout=_PATIENCE)
        assert isinstance(group, dist.ProcessGroup)  # every process belongs to it
        yield Ranks(dist.get_rank(), size, local, group)
    finally:
        dist.destroy_process_group()


@contextmanager
def alone_in(out: Path, ranks: Ranks) -> Iterator[None]:
    """Keep other runs out of the folder. The first process locks it for all."""
    is_new, descriptor = False, None
    if ranks.first:
        out.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # of two that come at once one makes it, and only that one removes it
            out.mkdir()
            is_new = True
        descriptor = os.open(out, os.O_RDONLY | os.O_DIRECTORY) if os.name == "posix" else None
    try:
        if ranks.any(descriptor is not None and not lock(descriptor)):
            raise ConfigError(f"another process trains in {out}: wait until it ends, or choose another --out")
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)
        if is_new:
            with suppress(OSError):  # not empty: it holds a run now
                out.rmdir()


@dataclass
class Stop:
    """Whether training was asked to stop. A plain flag and no lock: a signal may arrive while the handler
    runs, which would then wait for itself."""

    asked: bool = False


@contextmanager
def stop_on_signal(patient: bool = False) -> Iterator[Stop]:
    """Ctrl-C and SIGTERM ask training to save and stop after the current step; a second Ctrl-C interrupts at
    once, unless `patient`: torchrun forwards a Ctrl-C that its processes have already received."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # Python delivers signals to the main thread only
        return

    def ask(number: int, _frame: object) -> None:
        if stop.asked and number == signal.SIGINT and not patient:
            raise KeyboardInterrupt
        stop.asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

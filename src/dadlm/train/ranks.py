"""The processes of one run, as torchrun starts them, and the little they say to each other besides tensors.

Knows nothing of models: how weights and gradients are shared out is in `spread.py`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from dadlm.model import find_device
from dadlm.train.config import TrainConfig

_PATIENCE = timedelta(days=1)  # the first process of a machine may have to prepare a large text


@dataclass(frozen=True)
class Ranks:
    """Where this process stands among those of its run; by default it is alone."""

    rank: int = 0
    size: int = 1
    local: int = 0
    """Its number on its machine, which is also that of its GPU."""
    group: "dist.ProcessGroup | None" = None
    """For words between CPUs, which do not wait for a device; None: nobody to talk to."""

    @property
    def first(self) -> bool:
        """The one that writes files and logs."""
        return self.rank == 0

    def place(self, device: torch.device) -> torch.device:
        """The device of this process, of the kind that is asked for."""
        return device if self.group is None or device.type != "cuda" else torch.device("cuda", self.local)

    def wait(self) -> None:
        """Until all have come here."""
        if self.group is not None:
            dist.barrier(self.group)

    def any(self, flag: bool) -> bool:
        """Whether one of them says so."""
        if self.group is None:
            return flag
        told = torch.tensor(int(flag))
        dist.all_reduce(told, dist.ReduceOp.MAX, group=self.group)
        return bool(told)

    def agreed(self, values: list[float]) -> list[float]:
        """The first one's values: the others' may differ in the last bit, and decisions hang on them."""
        if self.group is None:
            return values
        told = torch.tensor(values, dtype=torch.float64)
        dist.broadcast(told, 0, group=self.group)
        return told.tolist()

    def agreed_text(self, text: str) -> str:
        """The first one's text."""
        if self.group is None:
            return text
        told: list[str] = [text]
        dist.broadcast_object_list(told, 0, group=self.group)
        return told[0]

    def sum(self, tensor: Tensor) -> Tensor:
        """Add up a tensor of all, in place."""
        if self.group is not None:
            dist.all_reduce(tensor)
        return tensor

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """The first process of each machine goes before the others, who find done what it left on disk."""
        if self.local:
            self.wait()
        yield
        if not self.local:
            self.wait()


@contextmanager
def joined(train: TrainConfig) -> Iterator[Ranks]:
    """Find the other processes that torchrun has started with this one; alone if it has not."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if "RANK" not in os.environ or (size == 1 and train.parallel == "ddp"):
        yield Ranks()
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

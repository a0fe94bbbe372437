"""A model over several processes: whole copies that add up their gradients (DDP), or shards (FSDP).

Gradients are summed, not averaged: a loss is already divided by the tokens of the whole batch. All else in
training works on ordinary tensors: `own_part` of a sharded one, which is some rows of its first dimension.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dadlm.model import Model
from dadlm.train.config import TrainConfig
from dadlm.train.ranks import Ranks

Result = TypeVar("Result")


class Whole(nn.Module):
    """Calls a function of the model as its forward pass, which is what DDP and FSDP hang their work on."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[Model], Result]) -> Result:
        return work(self.model)


def spread(model: Model, train: TrainConfig, ranks: Ranks, device: torch.device, bf16: bool) -> nn.Module:
    """Bring a model to its device, or this process' part of it; what comes back is called as `Whole` is."""
    if ranks.group is None:
        return Whole(model.to(device))
    if train.parallel == "fsdp":
        from dadlm.train.sharding import shard

        return shard(Whole(model), model, ranks.size, device, bf16)
    copies = DistributedDataParallel(Whole(model.to(device)), gradient_as_bucket_view=True)
    copies.register_comm_hook(None, _summed)
    return copies


def _summed(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])


def unspoken(whole: nn.Module) -> AbstractContextManager[None]:
    """Within it whole copies keep their gradients to themselves: all but the last micro-batch of a step.

    Shards add theirs up after each one: a whole set of gradients may not fit a device.
    """
    return whole.no_sync() if isinstance(whole, DistributedDataParallel) else nullcontext()


def is_cut(tensor: Tensor) -> bool:
    """Whether it is one of torch's sharded tensors (whose class may not be loaded)."""
    return hasattr(tensor, "to_local")


def own_part(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor, on the same memory."""
    return tensor.to_local() if is_cut(tensor) else tensor  # type: ignore[attr-defined]


def own_rows(tensor: Tensor, ranks: Ranks) -> tuple[int, int, int]:
    """First and last (exclusive) row of the part this process holds, and how many there are in all."""
    rows = len(tensor) if tensor.ndim else 1
    if not is_cut(tensor):
        return 0, rows, rows
    share = -(-rows // ranks.size)  # as torch.chunk cuts: full shares first, then what is left, then none
    return min(ranks.rank * share, rows), min((ranks.rank + 1) * share, rows), rows


def whole_tensor(tensor: Tensor) -> Tensor:
    """All of a tensor; all processes call it together."""
    return tensor.full_tensor() if is_cut(tensor) else tensor  # type: ignore[attr-defined]


def joined_parts(part: Tensor, like: Tensor) -> Tensor:
    """The whole tensor from everybody's part of it, cut as `like` is; all processes call it together."""
    if not is_cut(like):
        return part
    from dadlm.train.sharding import gather

    return gather(part, like)

"""A model over several processes: whole copies that add up their gradients (DDP), or shards (FSDP).

Gradients are summed, not averaged: a loss is already divided by the tokens of the whole batch. All else in
training works on the `local_part` of a sharded tensor: some rows of its first dimension.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dadlm.model import Model
from dadlm.train.config import TrainConfig
from dadlm.train.processes import Ranks


def wrap_distributed(
    model: Model, train: TrainConfig, ranks: Ranks, device: torch.device, bf16: bool
) -> nn.Module:
    """Bring a model to its device, or this process' part of it; what comes back is called as the model is."""
    if ranks.group is None:
        return model.to(device)
    if train.parallel == "fsdp":
        return _shard(model, ranks.size, device, bf16)
    wrapped = DistributedDataParallel(model.to(device), gradient_as_bucket_view=True)
    wrapped.register_comm_hook(None, _sum_gradients)
    return wrapped


def _sum_gradients(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])


def no_sync(wrapped: nn.Module) -> AbstractContextManager[None]:
    """Keeps the gradients of DDP local: for all but the last micro-batch of a step.

    FSDP adds them up after each one: a whole set of gradients may not fit a device.
    """
    return wrapped.no_sync() if isinstance(wrapped, DistributedDataParallel) else nullcontext()


def _shard(model: Model, size: int, device: torch.device, bf16: bool) -> nn.Module:
    """Each layer a unit that is gathered when it runs; what the model holds beside them is one more.

    So is the last layer: reading a context uses its first half alone, which is no forward pass to FSDP.
    In bf16 layers travel as such, the weights of their norms too; gradients are added up in fp32.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.ndim == 0:  # FSDP shards no such tensor; one element in a row behaves the same
                setattr(module, name, nn.Parameter(parameter.detach().reshape(1)))
    mesh = init_device_mesh(device.type, (size,))
    policy = MixedPrecisionPolicy()
    if bf16:
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for layer in list(model.backbone.layers)[:-1]:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    # Resharded too, or validation would leave the averaged weights to the next step.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # and nothing that only NCCL can do
    return model


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is one of torch's sharded tensors (whose class may not be loaded)."""
    return hasattr(tensor, "to_local")


def local_part(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor, on the same memory."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def local_rows(tensor: Tensor, ranks: Ranks) -> tuple[int, int, int]:
    """First and last (exclusive) row of the part this process holds, and how many there are in all."""
    rows = len(tensor) if tensor.ndim else 1
    if not is_sharded(tensor):
        return 0, rows, rows
    share = -(-rows // ranks.size)  # as torch.chunk divides: full shares first, then what is left, then none
    return min(ranks.rank * share, rows), min((ranks.rank + 1) * share, rows), rows


def full_tensor(tensor: Tensor) -> Tensor:
    """All of a tensor; all processes call it together."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def gather_parts(part: Tensor, like: Tensor) -> Tensor:
    """The whole tensor from everybody's part of it, sharded as `like` is; all processes call it together."""
    if not is_sharded(like):
        return part
    from torch.distributed.tensor import DTensor

    assert isinstance(like, DTensor)
    mesh, shape, stride = like.device_mesh, like.shape, like.stride()
    return DTensor.from_local(part, mesh, like.placements, shape=shape, stride=stride).full_tensor()

"""A model over several processes: whole copies that add up their gradients (DDP), or shards (FSDP), and their
files.

Gradients are summed: a loss is already divided by the tokens of the whole batch. Everything else works on the
`local_part` of a sharded tensor, some rows of its first dimension (a scalar counts as one row).
"""

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dadlm.errors import CheckpointError
from dadlm.model import Model
from dadlm.model.files import open_tensors, save_tensors
from dadlm.train.config import TrainConfig
from dadlm.train.processes import Ranks

_WHOLE, _PART = "state.safetensors", "state-{:05d}-of-{:05d}.safetensors"
COMPACT = "moments.safetensors"  # AdamW's moments alone, in bf16: what a model's folder may carry
_PART_NAME = re.compile(r"state-\d{5}-of-(\d{5})\.safetensors")


def wrap_distributed(
    model: Model, train: TrainConfig, ranks: Ranks, device: torch.device, bf16: bool
) -> nn.Module:
    """Move a model, or this process's part of it, to its device; call what is returned like the model."""
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
    """For all but the last micro-batch of a step: keeps DDP's gradients local. FSDP adds them up after each
    one, since a whole set of gradients may not fit a device."""
    return wrapped.no_sync() if isinstance(wrapped, DistributedDataParallel) else nullcontext()


def _shard(model: Model, size: int, device: torch.device, bf16: bool) -> nn.Module:
    """Each layer but the last is a unit that is gathered when it runs (reading a context uses half of the
    last), the rest is one more. With bf16, layers are gathered in bf16; gradients are added up in fp32."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.ndim == 0:  # FSDP shards no scalars; a row of one element behaves the same
                setattr(module, name, nn.Parameter(parameter.detach().reshape(1)))
    mesh = init_device_mesh(device.type, (size,))
    policy = MixedPrecisionPolicy()
    if bf16:
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for layer in list(model.backbone.layers)[:-1]:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    # Resharded too, or the next step would run on the averaged weights that validation gathered.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo, unlike NCCL, only sums
    return model


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is one of torch's sharded tensors (whose class may not be loaded)."""
    return hasattr(tensor, "to_local")


def local_part(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor, on the same memory."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def local_rows(tensor: Tensor, ranks: Ranks) -> tuple[int, int, int]:
    """First and last (exclusive) row that this process holds, and how many there are in all."""
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


def save_rows(tensors: Mapping[str, Tensor], folder: Path, number: int, count: int) -> None:
    """Write this process's rows. What has no rows is the same everywhere: the first process keeps it."""
    kept = {name: tensor for name, tensor in tensors.items() if tensor.ndim or number == 0}
    save_tensors(kept, folder / (_WHOLE if count == 1 else _PART.format(number + 1, count)))


class TensorFiles(ExitStack):
    """The files of a folder, open for reading until the end of the `with` block."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        files = [self.enter_context(open_tensors(file)) for file in _find(folder)]
        self._files = [(file, set(file.keys())) for file in files]

    @property
    def names(self) -> set[str]:
        return set().union(*(names for _, names in self._files))

    def whole(self, name: str) -> Tensor:
        """All rows of a tensor."""
        parts = [file.get_tensor(name) for file, names in self._files if name in names]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def read(self, name: str, first: int, last: int, rows: int) -> Tensor:
        """Rows first..last-1 of a tensor that must have `rows` rows."""
        parts, place = [], 0
        for file in (file for file, names in self._files if name in names):
            part = file.get_slice(name)
            is_number = not part.get_shape()
            count = 1 if is_number else part.get_shape()[0]
            here = slice(max(first - place, 0), max(min(last - place, count), 0))
            parts.append(file.get_tensor(name).reshape(1)[here] if is_number else part[here])
            place += count
        if place != rows:
            raise CheckpointError(f"training state: {name} has a shape with {place} rows, expected {rows}")
        return torch.cat(parts)


def _find(folder: Path) -> list[Path]:
    """The one file, or a file for each process, of which none may be missing, or the compact one."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    counts = [int(match[1]) for match in map(_PART_NAME.fullmatch, names) if match]
    if not counts:
        return [folder / (COMPACT if COMPACT in names and _WHOLE not in names else _WHOLE)]
    return [folder / _PART.format(number, max(counts)) for number in range(1, max(counts) + 1)]

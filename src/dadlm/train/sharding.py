"""FSDP: a model whose every tensor is cut by rows over the processes of a run, and gathered where it is used.

Imported when it is needed only: torch's sharded tensors take a second to load.
"""

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from dadlm.model import Model


def shard(whole: nn.Module, model: Model, size: int, device: torch.device, bf16: bool) -> nn.Module:
    """Each layer a unit that is gathered when it runs; what `whole` holds beside them is one more.

    So is the last layer: reading a context uses its first half alone, which is no forward pass to FSDP.
    In bf16 layers travel as such, the weights of their norms too; gradients are added up in fp32.
    """
    _lift_numbers(model)
    mesh = init_device_mesh(device.type, (size,))
    policy = MixedPrecisionPolicy()
    if bf16:
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for layer in list(model.backbone.layers)[:-1]:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    # Resharded too, or validation would leave the averaged weights to the next step.
    fully_shard(whole, mesh=mesh, reshard_after_forward=True)
    for module in whole.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # and nothing that only NCCL can do
    return whole


def gather(part: Tensor, like: Tensor) -> Tensor:
    """The whole tensor from everybody's part of it, cut as `like` is; all processes call it together."""
    assert isinstance(like, DTensor)
    mesh, shape, stride = like.device_mesh, like.shape, like.stride()
    return DTensor.from_local(part, mesh, like.placements, shape=shape, stride=stride).full_tensor()


def _lift_numbers(model: Model) -> None:
    """FSDP cuts no tensor without a dimension; one element in a row behaves the same."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.ndim == 0:
                setattr(module, name, nn.Parameter(parameter.detach().reshape(1)))

"""Fuse the pure parts of a model with torch.compile. Same results up to rounding, fewer and larger kernels.

Only functions from tensors to tensors are compiled, never the layouts and caches between them: there are
no graph breaks. Every layer shares the same few shapes: the clean stream, the collapsed nodes and the
capacities of packed nodes, each with and without gradients.
"""

from functools import partial

import torch

from dadlm.model.attention import attend_nodes, softmax_average
from dadlm.model.layer import Layer
from dadlm.model.network import Model


def compile_parts(model: Model) -> Model:
    """Compile a model's parts in place; the weights and their names stay as they are."""
    torch._dynamo.config.recompile_limit = 64  # the default of 8 is less than those shapes
    for layer in model.backbone.layers:
        assert isinstance(layer, Layer)
        layer.project = torch.compile(layer.project, dynamic=False)
        layer.finish = torch.compile(layer.finish, dynamic=False)
    model.backbone._finish = torch.compile(model.backbone._finish, dynamic=False)
    average = torch.compile(softmax_average, dynamic=False)
    model.backbone.attend_nodes = partial(attend_nodes, average=average)
    return model

"""Models whose weights are about to be replaced, or of which only shapes are needed: nothing is computed."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dadlm.model.config import ModelConfig
from dadlm.model.network import Model
from dadlm.tokens import Tokenizer

_RANDOM = (torch.rand, torch.randn)
_SCALING = (Tensor.mul, Tensor.__mul__, Tensor.__rmul__)


class _SkipInit(TorchFunctionMode):
    """Leaves initial values out: on the meta device they would import the compiler, a second and 70 MB."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init" or func in _SCALING:
            return next(one for one in (*args, *kwargs.values()) if isinstance(one, Tensor))
        return (torch.empty if func in _RANDOM else func)(*args, **kwargs)


def uninitialised(config: ModelConfig, tokenizer: Tokenizer | None = None, device: str = "cpu") -> Model:
    """A model with arbitrary weights; on the device "meta" only their shapes, which take no memory."""
    with torch.device(device), _SkipInit():
        return Model(config, tokenizer)

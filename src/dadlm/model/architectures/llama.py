"""The layer of pretrained causal language models, to start from one (docs/causal.md)."""

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

from dadlm.errors import ConfigError
from dadlm.model.architectures.lean import Lean

if TYPE_CHECKING:
    from dadlm.model.config import ModelConfig


class Llama(Lean):
    """RMSNorm, a gated MLP, keys and values that several heads may share."""

    mlp_inputs = 2

    @staticmethod
    def check(config: "ModelConfig") -> None:
        if config.family == "mdlm":
            raise ConfigError("architecture 'llama' predicts from the left: choose family ar, bd3lm or dadlm")
        if config.heads % (config.kv_heads or config.heads):
            raise ConfigError(f"heads {config.heads} must be a multiple of kv_heads {config.kv_heads}")

    @staticmethod
    def shift(config: "ModelConfig") -> bool:
        return config.family != "ar"

    @staticmethod
    def norm_eps(config: "ModelConfig") -> float:
        return config.norm_eps

    @staticmethod
    def activate(hidden: Tensor) -> Tensor:
        gate, up = hidden.chunk(2, -1)
        return F.silu(gate) * up

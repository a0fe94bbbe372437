"""Exactly the network that was published for BD3LM."""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dadlm.errors import ConfigError
from dadlm.model.architectures.lean import Lean

if TYPE_CHECKING:
    from dadlm.model.config import ModelConfig


class Condition(nn.Module):
    """The published network's time embedding, which is always fed time zero: learned constants."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(256, width), nn.Linear(width, width)

    def forward(self) -> Tensor:
        weight = self.first.weight
        sinusoid = torch.cat([weight.new_ones(128), weight.new_zeros(128)])  # cosines and sines of zero
        return F.silu(self.second(F.silu(self.first(sinusoid))))


class Bd3lm(Lean):
    """LayerNorm, biases in the MLP and in a vocabulary head of its own, adaLN."""

    biases, layer_norm, condition_width, is_published = True, True, 128, True

    @staticmethod
    def check(config: "ModelConfig") -> None:
        if config.tie_embedding:
            raise ConfigError("architecture 'bd3lm' has a head of its own: set tie_embedding to False")
        Lean.check(config)

    @staticmethod
    def norm_eps(config: "ModelConfig") -> float:
        return 1e-5

    @staticmethod
    def condition() -> nn.Module:
        return Condition(Bd3lm.condition_width)

    @staticmethod
    def initialise_linear(linear: nn.Linear, name: str, layers: int) -> None:
        """Zero head and modulation; all else as torch has it."""
        if name == "head.linear" or ".modulation" in f".{name}":
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)

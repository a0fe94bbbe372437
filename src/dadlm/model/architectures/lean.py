"""The plain layer, and what another architecture may change of it."""

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

from dadlm.errors import ConfigError

if TYPE_CHECKING:
    from dadlm.model.config import ModelConfig


class Lean:
    """RMSNorm, an MLP with GELU, no biases, no conditioning."""

    biases = False
    """Of the MLP and of the vocabulary head."""
    layer_norm = False
    """LayerNorm with weight only in place of RMSNorm."""
    mlp_inputs = 1
    """Parts of the first MLP projection that `activate` takes in."""
    condition_width = 0
    """Size of the vector that scales, shifts and gates every layer (adaLN); 0: there is none."""
    is_published = False
    """Whether it is the network that was published for BD3LM."""

    @staticmethod
    def check(config: "ModelConfig") -> None:
        """Refuse what this architecture does not have."""
        own = [name for name in ("kv_heads", "head_width", "mlp_width") if getattr(config, name) is not None]
        if own:
            raise ConfigError(f"{', '.join(own)}: only architecture 'llama' has a choice; leave it out")

    @staticmethod
    def shift(config: "ModelConfig") -> bool:
        """Whether a masked token is predicted from the place before it, as a causal language model does."""
        return False

    @staticmethod
    def norm_eps(config: "ModelConfig") -> float:
        """What a norm adds under the root."""
        return 1e-6

    @staticmethod
    def condition() -> nn.Module | None:
        """The module that makes the conditioning vector."""
        return None

    @staticmethod
    def activate(hidden: Tensor) -> Tensor:
        return F.gelu(hidden, approximate="tanh")

    @classmethod
    def initialise(cls, model: nn.Module, layers: int) -> None:
        """Embeddings are normal(0.02); norms keep their ones."""
        for name, module in model.named_modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            elif isinstance(module, nn.Linear):
                cls.initialise_linear(module, name, layers)

    @staticmethod
    def initialise_linear(linear: nn.Linear, name: str, layers: int) -> None:
        """normal(0.02), residual outputs less with depth."""
        depth = (2 * layers) ** -0.5 if name.endswith((".out", ".down")) else 1.0
        nn.init.normal_(linear.weight, std=0.02 * depth)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)

"""The layers a backbone may have: a new architecture is a class and an entry in the registry at the end.

`Lean` is the plain layer, and says what another architecture may change of it.
"""

from typing import TYPE_CHECKING, Literal

import torch
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
    """Exactly the network published for BD3LM: LayerNorm, biases in MLP and head, an untied head, adaLN."""

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


class Llama(Lean):
    """That of pretrained causal language models, to start from one (docs/causal.md): a gated MLP, keys and
    values that several heads may share."""

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


ArchitectureName = Literal["lean", "bd3lm", "llama"]
ARCHITECTURES: dict[str, type[Lean]] = {"lean": Lean, "bd3lm": Bd3lm, "llama": Llama}

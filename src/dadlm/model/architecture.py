"""The layers a backbone may have. `Lean` is the plain kind, and its attributes and methods are what others
may change; a new kind is a class and an entry in the registry at the end."""

from typing import TYPE_CHECKING, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from dadlm.errors import ConfigError

if TYPE_CHECKING:
    from dadlm.model.config import ModelConfig


class Lean:
    """RMSNorm, an MLP with GELU, no biases, no conditioning."""

    biases = False
    """Whether the MLP and the vocabulary head have biases."""
    layer_norm = False
    """LayerNorm with weight only, instead of RMSNorm."""
    norm_eps: float | None = 1e-6
    """What a norm adds under the root; None: what the configuration says."""
    mlp_inputs = 1
    """How many parts of the first MLP projection `activate` joins."""
    condition_width = 0
    """Size of the vector that scales, shifts and gates every layer (adaLN); 0: there is none."""
    predicts_next = False
    """Whether a masked token is predicted from the place before it, as a causal language model does."""
    is_published = False
    """Whether it is the network that was published for BD3LM."""

    @staticmethod
    def check(config: "ModelConfig") -> None:
        """Refuse what this architecture does not have."""
        own = [name for name in ("kv_heads", "head_width", "mlp_width") if getattr(config, name) is not None]
        if own:
            raise ConfigError(f"{', '.join(own)}: only architecture 'llama' has a choice; leave it out")

    @staticmethod
    def activate(hidden: Tensor) -> Tensor:
        return F.gelu(hidden, approximate="tanh")

    @staticmethod
    def embedding_std(width: int) -> float:
        """Standard deviation of random embeddings: the vocabulary head's, since they may be that head. With a
        much smaller one, what the layers add would drown them."""
        return (3 * width) ** -0.5

    @staticmethod
    def initialise(linear: nn.Linear, name: str, layers: int) -> None:
        """Normal, scaled by fan-in (a fixed 0.02 keeps narrow masked models on a plateau for long); residual
        outputs by depth, too. Transitions and edges start small: they add to what is there."""
        depth = (2 * layers) ** -0.5 if name.endswith((".out", ".down")) else 1.0
        std = 0.02 if name.startswith(("graph.", "head.edge.")) else (3 * linear.in_features) ** -0.5
        nn.init.normal_(linear.weight, std=std * depth)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)


class Bd3lm(Lean):
    """Exactly the network published for BD3LM: LayerNorm, biases in MLP and head, an untied head, adaLN."""

    biases, layer_norm, norm_eps, condition_width, is_published = True, True, 1e-5, 128, True

    @staticmethod
    def check(config: "ModelConfig") -> None:
        if config.tie_embedding:
            name = config.architecture
            raise ConfigError(f"architecture {name!r} has a head of its own: set tie_embedding to False")
        Lean.check(config)

    @staticmethod
    def embedding_std(width: int) -> float:
        return 0.02

    @staticmethod
    def initialise(linear: nn.Linear, name: str, layers: int) -> None:
        """Zero head and modulation; everything else as torch does it."""
        if name == "head.linear" or ".modulation" in f".{name}":
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)


class Bd3lmAr(Bd3lm):
    """The AR baseline that was published with BD3LM: the same network without adaLN."""

    condition_width, is_published = 0, False

    @staticmethod
    def check(config: "ModelConfig") -> None:
        if config.family != "ar":
            raise ConfigError(
                f"architecture 'bd3lm-ar' is for the family ar: choose bd3lm for {config.family}"
            )
        Bd3lm.check(config)


class Llama(Lean):
    """The network of pretrained causal language models, to start from one (docs/causal.md): a gated MLP, keys
    and values that several heads may share."""

    norm_eps, mlp_inputs, predicts_next = None, 2, True

    @staticmethod
    def check(config: "ModelConfig") -> None:
        if config.family == "mdlm":
            raise ConfigError("architecture 'llama' predicts from the left: choose family ar, bd3lm or dadlm")
        if config.heads % (config.kv_heads or config.heads):
            raise ConfigError(f"heads {config.heads} must be a multiple of kv_heads {config.kv_heads}")

    @staticmethod
    def activate(hidden: Tensor) -> Tensor:
        gate, up = hidden.chunk(2, -1)
        return F.silu(gate) * up


ArchitectureName = Literal["lean", "bd3lm", "bd3lm-ar", "llama"]
ARCHITECTURES: dict[str, type[Lean]] = {"lean": Lean, "bd3lm": Bd3lm, "bd3lm-ar": Bd3lmAr, "llama": Llama}

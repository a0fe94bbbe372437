"""Everything that decides a model's shape. Nothing here says how it is trained or used."""

import math
from dataclasses import dataclass
from typing import Literal, get_args, get_origin, get_type_hints

from dadlm.errors import ConfigError
from dadlm.model.architecture import ARCHITECTURES, ArchitectureName, Lean
from dadlm.model.edge import EDGES, EdgeName
from dadlm.model.transition import TRANSITIONS, TransitionName

Family = Literal["ar", "mdlm", "bd3lm", "dadlm"]
Mode = Literal["diffusion", "ar", "lossless"]

# Every number has a least and a largest value: a configuration may come from a stranger's file.
_BOUNDS: dict[str, tuple[float, float]] = {
    "vocab_size": (2, 2**24 + 1),
    "eot_id": (0, 2**24),
    "context": (2, 2**20),
    "block_size": (1, 2**14),
    "layers": (1, 1024),
    "width": (1, 2**16),
    "heads": (1, 1024),
    "kv_heads": (1, 1024),
    "head_width": (1, 2**14),
    "mlp_width": (1, 2**18),
    "rope_theta": (1e-6, 1e15),
    "norm_eps": (1e-20, 1.0),
    "lora": (0, 2**14),
    "dropout": (0, 1),
    "candidates": (1, 1024),
    "expand_at": (0, 1023),
    "track_bias": (-1e4, 1e4),
    "candidate_scale": (0, 1e4),
    "candidate_offset": (-1e4, 1e4),
    "edge_rank": (1, 2**13),
    "edge_second_rank": (0, 2**13),
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of a model of any family. Fields that a family does not use are ignored."""

    family: Family = "dadlm"
    """ar, mdlm (one block as long as the context), bd3lm, or dadlm."""
    vocab_size: int = 50258
    """Number of token ids, including the mask token, which is the last one."""
    eot_id: int = 50256
    """End-of-text token: separates documents, ends a completion, and stands for an empty prompt."""
    context: int = 1024
    """Maximum sequence length, including the prompt."""
    block_size: int = 16
    """N, tokens per diffusion block (bd3lm, dadlm)."""
    layers: int = 12
    """Transformer layers."""
    width: int = 768
    """Size of the residual stream."""
    heads: int = 12
    """Attention heads."""
    architecture: ArchitectureName = "lean"
    """lean: RMSNorm, no biases, no conditioning.
    bd3lm: exactly the published network, including adaLN.
    bd3lm-ar: the AR model of its authors, the same without adaLN.
    llama: that of pretrained causal language models, for starting from one (docs/causal.md)."""
    tie_embedding: bool = True
    """Use the embedding as the vocabulary head (the published network, bd3lm, does not)."""
    kv_heads: int | None = None
    """Key and value heads, each shared by heads / kv_heads query heads (llama). None: as many as heads."""
    head_width: int | None = None
    """Size of an attention head (llama). None: width / heads."""
    mlp_width: int | None = None
    """Hidden size of the MLP (llama). None: 4·width."""
    rope_theta: float = 10000.0
    """Base of the rotary position embedding."""
    norm_eps: float = 1e-5
    """Epsilon of the norms (llama)."""
    lora: int = 0
    """Rank of the adapters that are trained while the backbone's weights stay frozen; 0: no adapters."""
    lora_gated: bool = False
    """Apply the adapters to masked blocks only. Clean text is processed as in the
    original, so with `causal_context` mode ar remains the original model, bit for bit."""
    dropout: float = 0.0
    """Dropout on both residual branches."""
    candidates: int = 4
    """K, candidate nodes of a masked position (dadlm)."""
    expand_at: int = 0
    """Layer before which masked positions become K nodes; 0 as in the paper."""
    transition: TransitionName = "single"
    """single: the paper's equation. gated: several heads mixed by a gate computed from the source node."""
    track_bias: float | None = 3.0
    """Initial value of the learned bias towards keeping the candidate index. None: no bias."""
    candidate_scale: float = 0.02
    """Standard deviation of the candidate embeddings at initialisation (about 0.3 for late expansion)."""
    candidate_offset: float | None = None
    """Initial standard deviation of learned candidate
    offsets before the vocabulary head. None: no offsets."""
    edge: EdgeName = "none"
    """How a token's score depends on the token to its left (bd3lm, dadlm).
    none: not at all, as in the paper.
    bilinear: through a product of rank `edge_rank`, which can be initialised from counts.
    mlp: through a layer of that size before the vocabulary head."""
    edge_rank: int = 128
    """Rank of the token edges."""
    edge_second_rank: int = 0
    """Rank of second-order edges, from the token two positions to the
    left, used if both tokens there are masked (bilinear); 0: none."""
    causal_context: bool = False
    """Read clean text token by token (bd3lm, dadlm): a clean token does not see
    the rest of its block, and the model is also an AR model (decoding mode ar)."""

    def __post_init__(self) -> None:
        self._check_types()
        self._check_bounds()
        self._check_sizes()
        if self.family in ("bd3lm", "dadlm") and self.context % self.block_size:
            raise ConfigError(
                f"context {self.context} is not divisible by block_size {self.block_size}; "
                f"use a context of {self.context // self.block_size * self.block_size or self.block_size}"
            )
        if not 0 <= self.expand_at < self.layers:
            raise ConfigError(f"expand_at must be in 0..{self.layers - 1} (layers - 1), got {self.expand_at}")
        self.architecture_class.check(self)
        if self.edge != "none" and self.family not in ("bd3lm", "dadlm"):
            raise ConfigError(
                f"edge {self.edge}: token edges join the tokens of a block, and {self.family} has no blocks; "
                "leave edge at none, or choose the family bd3lm or dadlm"
            )
        if self.edge_second_rank and self.edge != "bilinear":
            raise ConfigError(
                f"edge_second_rank {self.edge_second_rank}: only bilinear edges look two places to the left, "
                f"and edge is {self.edge}; leave it at 0, or set edge to bilinear"
            )
        if self.causal_context and self.family == "mdlm":
            raise ConfigError(
                "causal_context: mdlm reads no clean text; leave it out, or choose the family bd3lm or dadlm"
            )
        if self.lora_gated and not (self.lora and self.family in ("bd3lm", "dadlm")):
            raise ConfigError(
                "lora_gated keeps adapters from clean text: it needs lora (a rank) and family bd3lm or dadlm"
            )
        if self.dropout == 1:
            raise ConfigError("dropout must be below 1")

    def _check_types(self) -> None:
        """Values may come from a JSON file, where nothing has checked them yet."""
        for name, kind in get_type_hints(type(self)).items():
            value, kinds = getattr(self, name), get_args(kind) or (kind,)
            if get_origin(kind) is Literal:
                continue  # compared with the choices
            number = float in kinds and isinstance(value, int) and not isinstance(value, bool)
            if not (number or any(type(value) is k for k in kinds)):
                wanted = " or ".join(getattr(k, "__name__", str(k)) for k in kinds)
                raise ConfigError(f"{name} must be {wanted}, got {_short(value)}")

    def _check_bounds(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if value is None or least <= value <= most:  # false for NaN
                continue
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"{name} must be finite, got {value}")
            limit = f"at least {least}" if value < least else f"at most {most}"
            raise ConfigError(f"{name} must be {limit}, got {_short(value)}")

    def _check_sizes(self) -> None:
        choices = {"family": get_args(Family), "architecture": ARCHITECTURES, "transition": TRANSITIONS}
        choices |= {"edge": EDGES}
        for name, allowed in choices.items():
            if not isinstance(getattr(self, name), str) or getattr(self, name) not in allowed:
                raise ConfigError(
                    f"unknown {name} {_short(getattr(self, name))}; choose one of {', '.join(allowed)}"
                )
        if self.head_width is None and self.width % (2 * self.heads):
            raise ConfigError(
                f"width {self.width} must be a multiple of 2·heads = {2 * self.heads}: rotary turns pairs"
            )
        if self.query_width % 2:
            raise ConfigError(f"head_width {self.head_width} must be even: rotary turns pairs")
        if not 0 <= self.eot_id < self.vocab_size - 1:
            raise ConfigError(f"eot_id {self.eot_id} must lie below the mask id {self.vocab_size - 1}")

    @property
    def architecture_class(self) -> type[Lean]:
        return ARCHITECTURES[self.architecture]

    @property
    def mask_id(self) -> int:
        """The last id; it is never emitted."""
        return self.vocab_size - 1

    @property
    def block(self) -> int:
        """Tokens decoded together: 1 (ar), the context (mdlm), or the block size."""
        return {"ar": 1, "mdlm": self.context}.get(self.family, self.block_size)

    @property
    def clean_block(self) -> int:
        """Tokens of clean text that see one another."""
        return 1 if self.causal_context else self.block

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The ways in which the model can decode, the usual one first."""
        if self.family == "ar":
            return ("ar", "lossless")
        if not self.is_both:
            return ("diffusion",)
        return ("diffusion", "ar", "lossless") if self.denoises_blocks else ("diffusion", "ar")

    @property
    def is_both(self) -> bool:
        """Whether a diffusion model is an AR model too."""
        return self.causal_context and self.family in ("bd3lm", "dadlm")

    @property
    def denoises_blocks(self) -> bool:
        """Whether blocks of several tokens are denoised after clean text."""
        return self.family in ("bd3lm", "dadlm") and self.block_size > 1

    @property
    def query_width(self) -> int:
        """E, the size of an attention head."""
        return self.head_width or self.width // self.heads

    @property
    def key_heads(self) -> int:
        """H', heads of keys and values, each shared by heads / key_heads queries."""
        return self.kv_heads or self.heads

    @property
    def shift(self) -> bool:
        """Whether a masked token is predicted from the place before it, as a causal language model does."""
        return self.architecture_class.predicts_next and self.family != "ar"

    @property
    def asks_before(self) -> bool:
        """Whether a block's nodes depend on the token before the block by other ways than attention."""
        return self.shift or self.edge != "none"

    @property
    def nodes_per_mask(self) -> int:
        """Nodes of a masked position: K for dadlm, else 1."""
        return self.candidates if self.family == "dadlm" else 1


def _short(value: object) -> str:
    """A value as a message shows it: numbers from files may have hundreds of digits."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]}… ({len(text)} characters)"

"""A complete fine-tuning as data."""

from dataclasses import dataclass, field

from dadlm.errors import ConfigError
from dadlm.noise import NoiseConfig
from dadlm.train.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """Everything about one fine-tuning."""

    model: str = ""
    """Model to start from: one that ships with dadlm (dadlm, bd3lm, ar), a folder of a model or of a training
    run (its best checkpoint), or a Hugging Face name."""
    data: tuple[str, ...] = ()
    """Pairs to learn: JSON Lines (.jsonl, also .zst) of {"document", "summary"} or {"prompt", "completion"},
    or folders of them."""
    valid: tuple[str, ...] = ()
    """Pairs for validation."""
    out: str = "runs/finetuned"
    """Folder of the run; an unfinished run found there is continued."""
    document_tokens: int | None = None
    """Tokens of a document that are read, the end-of-text after it included; none: what the model was
    fine-tuned on before, or 3/4 of the context."""
    summary_tokens: int | None = None
    """Tokens of a summary at most; none: what the model was fine-tuned on before, or the rest of the
    context."""
    dropout: float | None = None
    """Share of each layer's output that training leaves out at random; none: as the model has it."""
    rouge_pairs: int = 64
    """Validation pairs, spread evenly over all, that are summarised at each validation."""
    patience: int = 3
    """Stop after so many validations without a better ROUGE; 0: never."""
    strict: bool = False
    """Stop at the first line that is no pair, instead of leaving it out."""
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        if self.rouge_pairs < 1 or self.patience < 0:
            raise ConfigError("rouge_pairs must be at least 1, and patience not negative")
        if self.train.power != 1 or self.train.block_share != 1 or self.noise.clip_search:
            raise ConfigError("fine-tuning has no power, block_share or clip_search: leave them out")

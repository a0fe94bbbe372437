"""A complete training run, or fine-tuning, as data. The resolved form is saved with every checkpoint."""

import math
from dataclasses import dataclass, field
from typing import Literal

from dadlm.errors import ConfigError
from dadlm.model import ModelConfig
from dadlm.noise import NoiseConfig


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The text to train on."""

    train: str = ""
    """A .txt, .jsonl, .jsonl.zst or .parquet file, a folder or pattern of these,
    hf:NAME (a dataset), or a mixture of these, WEIGHT:SOURCE,WEIGHT:SOURCE."""
    valid: str | None = None
    """Text for validation. None: hold out the end of the training text."""
    valid_share: float = 0.05
    """Share of the training text that is held out if `valid` is None."""
    text_field: str = "text"
    """Field of a record that holds the text."""
    tokenizer: str = "bpe:8192"
    """bpe:SIZE (train a byte-level BPE on the training text), gpt2, a folder, or a Hugging Face name."""
    cache: str = ".dadlm-cache"
    """Folder for tokenised shards."""
    rows: Literal["stream", "documents"] = "stream"
    """stream: concatenate documents and cut the result into rows.
    documents: one document per row, padded with end-of-text."""

    def __post_init__(self) -> None:
        if not 0 < self.valid_share < 1:
            raise ConfigError(f"valid_share must be between 0 and 1, got {self.valid_share}")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Optimisation settings."""

    steps: int = 1000
    """Optimiser steps of this stage."""
    batch_size: int = 32
    """Rows per step, over all micro-batches and processes."""
    accumulate: int = 1
    """Micro-batches per step and process; affects memory, not results (except the draws of dropout)."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """adamw, or muon: Muon for the matrices of the layers
    and AdamW for everything else, with one learning rate."""
    lr: float = 3e-4
    """Learning rate after warm-up."""
    graph_lr_scale: float = 1.0
    """Factor on the learning rate of what DA-DLM adds (transitions, candidates, start node)."""
    edge_tokens: int = 20_000_000
    """Tokens of the text that are counted to initialise new bilinear edges; 0 initialises them to zero."""
    warmup: int = 100
    """Steps of linear warm-up."""
    decay: int = 0
    """Steps of linear decay to zero at the end; 0 keeps the rate constant, as in the paper."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's betas."""
    weight_decay: float = 0.0
    """AdamW's weight decay."""
    clip: float = 1.0
    """Maximum gradient norm."""
    ema: float = 0.9999
    """Decay of the moving average of the weights.
    At step n, counted over all stages of a family, it is
    min(ema, (1 + n) / (10 + n)), to forget early weights sooner."""
    seed: int = 0
    """Seed of initial weights, data order, noise and dropout; the same for all stages of a route."""
    valid_every: int = 500
    """Steps between validations."""
    valid_rows: int = 256
    """Rows used for validation."""
    save_every: int = 1000
    """Steps between checkpoints."""
    log_every: int = 10
    """Steps between log entries."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 on CUDA, fp32 elsewhere."""
    device: str = "auto"
    """cpu, cuda, or auto (cuda if available)."""
    compile: bool = False
    """Use torch.compile on parts of the model: slow to start, faster afterwards."""
    graphs: bool = True
    """Capture each step as a CUDA graph and replay it: faster, but keeps more memory.
    Only has an effect on CUDA with one process, accumulate 1 and no checkpointing."""
    checkpointing: bool = False
    """Recompute each layer in the backward pass instead of storing it: less memory, a third more time."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Under torchrun: ddp (every process holds a full copy) or fsdp (every process holds a shard)."""
    ar_weight: float = 0.0
    """Weight of the AR loss on the clean text, added to the diffusion loss (models with `causal_context`)."""
    masks_per_row: int = 1
    """How often a step masks each row, differently each time
    (bd3lm, dadlm); the clean text is read only once for all."""

    def __post_init__(self) -> None:
        counts = ("steps", "batch_size", "accumulate", "masks_per_row")
        for name in (*counts, "valid_every", "valid_rows", "save_every", "log_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        batch, parts, warmup, decay = self.batch_size, self.accumulate, self.warmup, self.decay
        fractions = all(0 <= beta < 1 for beta in self.betas) and self.weight_decay >= 0
        weights = 0 <= self.ar_weight < math.inf
        rates = self.lr > 0 and self.clip > 0 and self.graph_lr_scale > 0  # false for NaN
        checks = {
            f"batch_size {batch} is not divisible by accumulate {parts}": batch % parts == 0,
            "lr, clip and graph_lr_scale must be positive": rates,
            "betas must be in [0, 1) and weight_decay not negative": fractions,
            f"ar_weight must be a number of at least 0, got {self.ar_weight}": weights,
            "seed must fit into 64 bits": -(2**63) <= self.seed < 2**63,
            f"warmup {warmup} and decay {decay} must not be negative": warmup >= 0 and decay >= 0,
            f"decay {decay} exceeds steps {self.steps}: pass --train.decay as well": decay <= self.steps,
            f"parallel must be ddp or fsdp, got {self.parallel!r}": self.parallel in ("ddp", "fsdp"),
            f"optimizer must be adamw or muon, got {self.optimizer!r}": self.optimizer in ("adamw", "muon"),
            "muon needs whole matrices: pass --train.parallel ddp": self.optimizer == "adamw"
            or self.parallel == "ddp",
            f"ema must be in [0, 1), got {self.ema}": 0 <= self.ema < 1,
        }
        for message, holds in checks.items():
            if not holds:
                raise ConfigError(message)

    def is_due(self, step: int, every: int) -> bool:
        """Whether what is done every so many steps, and after the last one, is done after this one."""
        return step == self.steps or step % every == 0

    def lr_at(self, step: int) -> float:
        """Learning rate of a step."""
        warm = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        cool = min(1.0, (self.steps - step) / self.decay) if self.decay else 1.0
        return self.lr * warm * cool


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One stage of training."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    out: str = "runs/run"
    """Folder of the run; an unfinished run found there is resumed."""
    init_from: str | None = None
    """Model to continue training from: AR or MDLM before BD3LM, BD3LM before DA-DLM.
    Name of a shipped model (dadlm, bd3lm, ar), folder of a model or of
    a training run (uses its best checkpoint), or Hugging Face name."""

    def __post_init__(self) -> None:
        if self.train.masks_per_row > 1 and not self.model.denoises_blocks:
            raise ConfigError(
                "train.masks_per_row needs blocks of several tokens and a clean text, as bd3lm and dadlm "
                f"have them: leave it out for this {self.model.family}"
            )
        if self.train.ar_weight and not self.model.is_both:
            raise ConfigError(
                "train.ar_weight needs a bd3lm or dadlm model that reads clean text token by token: pass "
                f"--model.causal-context as well, or leave it out for this {self.model.family}"
            )


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """One fine-tuning run."""

    model: str = ""
    """Model to start from: name of a shipped model (dadlm, bd3lm, ar), folder of a
    model or of a training run (uses its best checkpoint), or Hugging Face name."""
    data: tuple[str, ...] = ()
    """Training pairs: JSON Lines (.jsonl, also .zst) of {"document",
    "summary"} or {"prompt", "completion"}, or folders of such files."""
    valid: tuple[str, ...] = ()
    """Pairs for validation."""
    out: str = "runs/finetuned"
    """Folder of the run; an unfinished run found there is resumed."""
    document_tokens: int | None = None
    """Tokens of a document that are read, including the end-of-text after it.
    None: as in the model's previous fine-tuning, otherwise 3/4 of the context."""
    summary_tokens: int | None = None
    """Maximum number of tokens of a summary.
    None: as in the model's previous fine-tuning, otherwise the rest of the context."""
    dropout: float | None = None
    """Dropout rate of each layer's output. None: that of the model."""
    rouge_pairs: int = 64
    """Validation pairs, spread evenly over all, that are summarised at each validation."""
    patience: int = 3
    """Stop after this many validations without a better ROUGE; 0: never."""
    strict: bool = False
    """Stop at the first line that is not a pair, instead of skipping it."""
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        if self.rouge_pairs < 1 or self.patience < 0:
            raise ConfigError("rouge_pairs must be at least 1, and patience not negative")
        if self.noise.clip_search:
            raise ConfigError("fine-tuning has no clip_search: leave it out")

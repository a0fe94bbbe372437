"""Options of each kind of evaluation, and the call of `dadlm.evaluate` that they make."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dadlm import evaluate
from dadlm.cli.evaluate.common import Common, OneModel, OnText, load_model, load_models, names_of
from dadlm.cli.evaluate.judge import Judge
from dadlm.decode.pair import LOOKUP
from dadlm.errors import ConfigError
from dadlm.evaluate import AcceptanceSettings, GenerationSettings, LatencySettings
from dadlm.evaluate.documents import read_documents
from dadlm.evaluate.reconstruction import check_tokenizers
from dadlm.evaluate.summarisation import summary_settings
from dadlm.model import Model
from dadlm.train.finetune import learned_lengths, lengths_as_learned


@dataclass(frozen=True, kw_only=True)
class Reconstruction(OnText, OneModel):
    """Reconstruction of masked blocks, for one model or paired with a second one."""

    against: str = ""
    """A second model to compare with, row by row. Empty: none."""
    count: int | None = None
    """Rows to score, from the start of the text. None: all."""
    length: int | None = None
    """Tokens per row. None: the context; with two models, the shorter one."""

    def measure(self, folder: Path) -> dict[str, Any]:
        model, against, length = load_model(self.model, self), None, self.length
        if self.against:
            against = load_model(self.against, self)
            check_tokenizers([model, against])  # before any text is tokenised
            length = length or min(model.config.context, against.config.context)
        rows, data = self.rows(model, length)
        first, second = names_of([self.model, self.against or self.model])
        run = self.run(folder) | {"data": data, "names": (first, second)}
        return evaluate.reconstruction(model, rows, against=against, count=self.count, **run)


@dataclass(frozen=True, kw_only=True)
class Perplexity(OnText, OneModel):
    """Perplexity: exact for AR, an upper bound for the other families."""

    mode: Literal["diffusion", "ar"] = "diffusion"
    """ar: score a model with `causal_context` as an AR model, exactly."""

    count: int | None = None
    """Rows to score, drawn from all over the text. None: all."""
    length: int | None = None
    """Tokens per row. None: the model's context."""
    draws: int = 1
    """Masks drawn for each row and estimator; more give a narrower interval (AR draws none)."""
    passes: int | None = None
    """1: the exact likelihood of blocks written in a single pass each (bd3lm, dadlm), also by position."""
    chains: int = 64
    """For models with token edges: sampled chains that
    sum out masked left neighbours; a multiple of 4.
    Vocabularies of at most 16 times as many tokens are
    summed exactly, except with second-order edges.
    0: always exactly (not with second-order edges)."""

    def measure(self, folder: Path) -> dict[str, Any]:
        model = load_model(self.model, self)
        rows, data = self.rows(model, self.length)
        run = self.run(folder) | {"data": data, "name": names_of([self.model])[0]}
        how = {"draws": self.draws, "passes": self.passes, "chains": self.chains, "mode": self.mode}
        return evaluate.perplexity(model, rows, count=self.count, **how, **run)


@dataclass(frozen=True, kw_only=True)
class Generation(OnText, GenerationSettings):
    """Completions over a grid of decoding settings: MAUVE, judge perplexity, TPF, figure."""

    model: tuple[str, ...] = ("bd3lm", "dadlm")
    """Models to compare, by name or folder; adjusted TPF needs a BD3LM of the same block size among them."""
    mode: Literal["diffusion", "ar"] = "diffusion"
    """ar: use models with `causal_context` as AR models."""
    configurations: tuple[str, ...] = ("quick",)
    """Presets (quick, paper, paper-16, paper-8, paper-4) or single configurations:
    FH T=8 D=8 T=8/infill=2,0.5 conf=0.9 H=0.5."""

    embedder: str = "smollm2"
    """Model for MAUVE features: smollm2, minilm, gpt2-large,
    a Hugging Face name or folder; none: no MAUVE."""
    judge_lm: str = "smollm2"
    """Language model for perplexity: smollm2, a Hugging Face name or folder; none: no perplexity."""

    def measure(self, folder: Path) -> dict[str, Any]:
        models = load_models(self.model, self, self.mode)
        rows, data = self.rows(min(models.values(), key=lambda model: model.config.context))
        without = {name: None for name in ("embedder", "judge_lm") if getattr(self, name) in ("", "none")}
        return evaluate.generation(models, rows, self, out=folder, quiet=self.json, data=data, **without)


@dataclass(frozen=True, kw_only=True)
class Summarisation(OneModel):
    """ROUGE, tokens per forward pass, and the lead-sentence baseline."""

    data: str = ""
    """JSON Lines (.jsonl, also .zst) of {"document", "summary"}
    or {"prompt", "completion"}, or a folder of such files."""
    pairs: int | None = None
    """Use only the first pairs, this many. None: all."""
    document_tokens: int | None = None
    """Tokens of a document that are read, including the end-of-text after it.
    None: as in fine-tuning, otherwise 3/4 of the context."""
    summary_tokens: int | None = None
    """Maximum number of tokens of a summary. None: as in fine-tuning, otherwise the rest of the context."""
    strict: bool = False
    """Stop at the first line that is not a pair, instead of skipping it."""
    paper: bool = False
    """Decode as in the paper: DA-DLM along the best path of a
    block, with end-of-text treated like any other token.
    Such summaries are short."""
    threshold: float = 0.9
    """Minimum confidence at which diffusion models keep a token; AR decodes greedily."""
    infill: tuple[int, float] | None = None
    """k r: fill gaps of at most k tokens once a share r of the block is known."""

    def measure(self, folder: Path) -> dict[str, Any]:
        if not self.data:
            raise ConfigError('no data: pass --data FILE, JSON Lines of {"document": ..., "summary": ...}')
        if self.pairs is not None and self.pairs < 1:
            raise ConfigError(f"--pairs must be at least 1, got {self.pairs}")
        model = load_model(self.model, self)
        learned = learned_lengths(self.model)
        sizes = lengths_as_learned(model, learned, self.document_tokens, self.summary_tokens)
        how = {"paper": self.paper, "threshold": self.threshold, "infill": self.infill}
        return evaluate.summarisation(
            model,
            read_documents(self.data, count=self.pairs, strict=self.strict),
            settings=summary_settings(model.config.family, **how),
            document_tokens=sizes[0],
            summary_tokens=sizes[1],
            name=names_of([self.model])[0],
            **self.run(folder),
        )


@dataclass(frozen=True, kw_only=True)
class Latency(Common, LatencySettings):
    """Time of a complete denoising step, and memory."""

    decides = ("batch_size",)
    model: tuple[str, ...] = ("bd3lm", "dadlm")
    """Models to measure, by name or folder; ratios need a BD3LM among them."""
    mode: Literal["diffusion", "ar"] = "diffusion"
    """ar: use models with `causal_context` as AR models."""
    batch_size: int = 32
    """Texts decoded at once; 32 in the paper."""
    new_tokens: int | None = None
    """Length of the text whose memory use is measured. None: up to the end of the context; on a cpu, 64."""

    def measure(self, folder: Path) -> dict[str, Any]:
        models = load_models(self.model, self, self.mode)
        # 64 tokens take a CPU seconds; in a short context there is no choice.
        slow = all(model.device.type == "cpu" and model.config.context >= 256 for model in models.values())
        new_tokens = self.new_tokens or (64 if models and slow else None)
        options = replace(self, new_tokens=new_tokens)
        return evaluate.latency(models, options, out=folder, quiet=self.json)


@dataclass(frozen=True, kw_only=True)
class Acceptance(OnText, OneModel, AcceptanceSettings):
    """Tokens per cycle of the lossless mode, for each draft model."""

    model: str = "ar"
    """The target model: an AR model, or one with `causal_context`, which also drafts for itself."""
    draft: tuple[str, ...] = ()
    """Models that draft, by name or folder, or lookup (no
    model: copies what followed the same tokens earlier).
    If none: the model itself and lookup; for an AR model, bd3lm, dadlm and lookup."""
    batch_size: int = 32
    """Texts decoded at once; affects speed, not results."""

    def measure(self, folder: Path) -> dict[str, Any]:
        model = load_model(self.model, self)
        drafts = self.draft or (
            ("bd3lm", "dadlm", LOOKUP) if model.config.family == "ar" else (self.model, LOOKUP)
        )
        others = [one for one in dict.fromkeys(drafts) if one != LOOKUP]
        own, *names = names_of([self.model, *others])  # of the same name is the same model
        named: dict[str, Model | None] = {
            name: model if name == own else load_model(one, self)
            for name, one in zip(names, others, strict=True)
        }
        named |= {LOOKUP: None} if LOOKUP in drafts else {}
        rows, data = self.rows(model)
        return evaluate.acceptance(model, named, rows, self, name=own, out=folder, quiet=self.json, data=data)


# In the order of the report. A kind is also a function of `dadlm.evaluate`, and a module of
# `dadlm.evaluate.report` with its tables.
OPTIONS = {
    kind.__name__.lower(): kind
    for kind in (Reconstruction, Perplexity, Generation, Judge, Summarisation, Latency, Acceptance)
}

"""Who decides and who drafts in the lossless mode, and the keys and values of both."""

from pathlib import Path

from dadlm.decode.cache import Cache
from dadlm.errors import ConfigError
from dadlm.model import Model, in_mode
from dadlm.model.layer import longest_text
from dadlm.model.pretrained import DRAFT

LOOKUP = "lookup"
"""In place of a draft model: what followed the last tokens where they stood before."""


def usual_draft(model: object) -> str | None:
    """What drafts for a model, as its user named it, if nothing is said: the shipped AR model has one."""
    return DRAFT if model == "ar" else None


def target_and_draft(model: Model, draft: Model | str | Path | None) -> tuple[Model, Model | None]:
    """Who decides and who drafts (None: nobody, it is looked up). A model with a causal context is both."""
    target = in_mode(model, "lossless")
    if draft == LOOKUP or (draft is None and not model.config.denoises_blocks):
        return target, None
    draft = model if draft is None else draft
    assert isinstance(draft, Model)
    if not draft.config.denoises_blocks:
        raise ConfigError(
            f"a {draft.config.family} model with blocks of {draft.config.block} cannot draft: name a bd3lm "
            "or dadlm model with blocks of several tokens"
        )
    if draft.config.vocab_size != target.config.vocab_size or draft.tokenizer != target.tokenizer:
        raise ConfigError("the draft model has another tokenizer than the model whose text is wanted")
    if (longest := longest_text(draft.config)) < target.config.context:
        raise ConfigError(
            f"the draft model reads {longest:,} tokens at most, the context of the other is "
            f"{target.config.context:,}: name a draft model of a longer context"
        )
    if draft.device != target.device:
        raise ConfigError(f"the draft model is on {draft.device}, the other on {target.device}")
    return target, draft


def drafts_for_itself(target: Model, draft: Model | None) -> bool:
    """Whether the clean stream of the draft model is the target: they share one backbone, and one cache."""
    return draft is not None and draft.backbone is target.backbone


class PairCache(Cache):
    """Keys and values of the target, and of a draft model with weights of its own."""

    def __init__(self, target: Model, draft: Model, slots: int, positions: int) -> None:
        super().__init__(target, slots, positions)
        self.draft = Cache(draft, slots, positions)

    def copy_from(self, other: "PairCache") -> None:  # type: ignore[override]
        super().copy_from(other)
        self.draft.copy_from(other.draft)

    def move(self, source: int, target: int, length: int) -> None:
        super().move(source, target, length)
        self.draft.move(source, target, length)

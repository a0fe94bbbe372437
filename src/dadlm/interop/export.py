"""A folder that both `transformers` and dadlm load: weights, tokenizer, a few lines of code, a card."""

from pathlib import Path

from dadlm.interop.card import CARD, card_of
from dadlm.interop.transformers import DadlmForMaskedLM
from dadlm.model import Model
from dadlm.model.files import write_json

MASK = "<|mask|>"  # how AutoTokenizer spells the mask; in our own tokenizer.json it has no text
_PLAIN = ("lstrip", "rstrip", "single_word", "normalized")


def write_transformers(folder: Path, model: Model) -> None:
    """Write a model into an existing folder, with a card that says what can be known from it."""
    DadlmForMaskedLM.of(model).save_pretrained(folder)
    if model.tokenizer is not None:
        model.tokenizer.save(folder)
        _describe_tokenizer(folder, model)
    (folder / CARD).write_text(card_of(model), encoding="utf-8")


def _describe_tokenizer(folder: Path, model: Model) -> None:
    """tokenizer_config.json, from which AutoTokenizer learns what tokenizer.json leaves open."""
    tokenizer, mask = model.tokenizer, {"content": MASK, "special": True}
    assert tokenizer is not None
    eot = tokenizer.token_text(tokenizer.eot_id)
    facts = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.config.context,
        "eos_token": eot,
        "pad_token": eot,
        "mask_token": MASK,
        "added_tokens_decoder": {str(tokenizer.mask_id): mask | dict.fromkeys(_PLAIN, False)},
    }
    write_json(folder / "tokenizer_config.json", facts)

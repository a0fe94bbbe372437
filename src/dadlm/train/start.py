"""The model a stage begins with: fresh, or taken over from the stage before."""

import math
from dataclasses import replace
from pathlib import Path

import torch

from dadlm.errors import CheckpointError
from dadlm.model import Model, ModelConfig, load
from dadlm.model.checkpoint import set_weights, weights
from dadlm.tokens import Tokenizer

# Which family may be trained on from which: the stages of the paper, and every family from itself.
_STAGES = {"ar": ("ar",), "mdlm": ("mdlm",), "bd3lm": ("mdlm", "bd3lm"), "dadlm": ("mdlm", "bd3lm", "dadlm")}
# Where these differ the shapes may still fit, but the weights would mean something else.
_MEANING = ("architecture", "heads", "kv_heads", "head_width", "rope_theta", "norm_eps")
_NEW = ("graph.", "head.offset")  # what DA-DLM adds starts fresh when the earlier stage has none


def fresh_model(config: ModelConfig, tokenizer: Tokenizer, seed: int) -> Model:
    """A model with random weights for a tokenizer."""
    torch.manual_seed(seed)
    config = replace(config, vocab_size=tokenizer.vocab_size + 1, eot_id=tokenizer.eot_id)
    return Model(config, tokenizer)


def model_from(origin: str | Path, config: ModelConfig, seed: int) -> Model:
    """A model of `config` with the weights of `origin`; tokenizer and vocabulary come from there too."""
    earlier = load(origin)
    family = earlier.config.family
    if family not in _STAGES[config.family]:
        allowed = " or ".join(_STAGES[config.family])
        raise CheckpointError(
            f"{origin} is a model of family {family}; {config.family} can start from {allowed}"
        )
    if earlier.tokenizer is None:
        raise CheckpointError(f"{origin} has no tokenizer.json: its text cannot be continued")
    for name in _MEANING:
        theirs, own = getattr(earlier.config, name), getattr(config, name)
        if theirs != own and not (name == "norm_eps" and math.isclose(theirs, own, rel_tol=1e-6)):  # float32
            raise CheckpointError(f"{origin} has {name} {theirs}, this model {own}: give the same")
    model = fresh_model(config, earlier.tokenizer, seed)
    tensors = weights(earlier)
    own = weights(model)
    tensors |= {name: own[name] for name in own if name.startswith(_NEW) and name not in tensors}
    set_weights(model, tensors, origin)
    return model

"""A model with a causal context is also an AR model: the same weights, seen as one of family ar.

Everything that takes an AR model takes this one: decoding, its engine and cache, perplexity, the server.
"""

from dataclasses import replace

from dadlm.errors import ConfigError
from dadlm.model.config import Mode
from dadlm.model.network import Model
from dadlm.model.uninitialised import uninitialised


def in_mode(model: Model, mode: Mode) -> Model:
    """The model itself, or an AR model that shares its weights, kept for as long as the model is; mode
    lossless verifies with it, too."""
    if model.config.family == "ar" or mode == "diffusion":
        return model
    if mode not in model.config.modes:
        raise ConfigError(
            f"mode {mode} needs clean text that is read token by token, and this "
            f"{model.config.family} model does not read it so; train one that does: "
            "dadlm train lab-bd3lm --model.causal-context --train.ar-weight 1, or use --model ar"
        )
    if not model.views:
        model.views.append(_as_ar(model))
    return model.views[0].train(model.training)


def _as_ar(model: Model) -> Model:
    config = replace(
        model.config, family="ar", edge="none", edge_second_rank=0, expand_at=0, lora_gated=False
    )
    view = uninitialised(config, model.tokenizer, device="meta")
    view.turn_end_id = model.turn_end_id
    view.backbone, view.head.linear = model.backbone, model.head.linear
    return view

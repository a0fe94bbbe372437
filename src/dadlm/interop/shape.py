"""BD3LM's and MDLM's config.json ↔ our configuration. Refuses every network but the one that we know."""

from collections.abc import Mapping
from typing import Any

from dadlm.errors import CheckpointError, ConfigError
from dadlm.model import ModelConfig

FAMILIES = ("bd3lm", "mdlm")
_FIELDS = {  # theirs: ours
    "vocab_size": "vocab_size",
    "model_length": "context",
    "hidden_dim": "width",
    "n_blocks": "layers",
    "n_heads": "heads",
    "dropout": "dropout",
}
_WANTED = {"cond_dim": 128, "time_conditioning": False, "causal": False, "adaln": True}


def shape_of(their: Mapping[str, Any], origin: object) -> ModelConfig:
    """Our configuration of their config.json; end-of-text is not in it and taken to be the last token."""
    family = their.get("model_type")
    if family not in FAMILIES:
        raise CheckpointError(
            f"{origin} describes neither bd3lm nor mdlm: its model_type is {family!r} "
            "(dadlm convert --from-causal reads Llama-like models)"
        )
    fields = _FIELDS | ({"block_size": "block_size"} if family == "bd3lm" else {})
    differences = [f"{name} is missing" for name in fields if name not in their]
    differences += [
        f"{name} is {their[name]!r}, expected {value!r}"
        for name, value in _wanted(their).items()
        if name in their and their[name] != value
    ]
    if differences:
        listing = "\n  ".join(differences)
        raise CheckpointError(f"{origin} describes another network than the published one:\n  {listing}")
    shape = {ours: their[name] for name, ours in fields.items()}
    try:
        shape["eot_id"] = shape["vocab_size"] - 2
        return ModelConfig(family=family, architecture="bd3lm", tie_embedding=False, **shape)
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"{origin} is not a valid configuration: {error}") from error


def config_of(config: ModelConfig) -> dict[str, Any]:
    """Their config.json of a model that we trained."""
    their = {"model_type": config.family, "architectures": [config.family.upper()], "torch_dtype": "float32"}
    their |= {name: getattr(config, ours) for name, ours in _FIELDS.items()}
    their |= {"cond_dim": 128, "time_conditioning": False}
    if config.family == "bd3lm":
        their |= {"block_size": config.block_size, "cross_attn": True, "adaln": True, "causal": False}
        their |= {"attn_backend": "sdpa", "var_min": False}
    return their


def is_same(one: ModelConfig, other: ModelConfig) -> bool:
    """The same network: fields that only training or other families use may differ."""
    names = ("family", "vocab_size", "context", "block", "layers", "width", "heads", "rope_theta")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _wanted(their: Mapping[str, Any]) -> dict[str, Any]:
    """What must be so where it is said; only several blocks need the clean text before them."""
    if their.get("block_size") == their.get("model_length"):
        return _WANTED
    return _WANTED | {"cross_attn": True}

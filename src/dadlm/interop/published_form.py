"""The published form of BD3LM and MDLM: names of weights, config.json, and the rest of a folder.

What our own format has no place for is kept in `published.json`, to write a folder back bit for bit.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dadlm.errors import CheckpointError, ConfigError
from dadlm.model import ModelConfig
from dadlm.model.untrusted import read_json

NOTES = "published.json"
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
_ROOT = {
    "backbone.norm": "backbone.output_layer.norm_final",
    "backbone.condition.first": "backbone.sigma_map.mlp.0",
    "backbone.condition.second": "backbone.sigma_map.mlp.2",
    "backbone.modulation.linear": "backbone.output_layer.adaLN_modulation",
    "head.linear": "backbone.output_layer.linear",
}
_LAYER = {
    "norm_attention": "norm1",
    "qkv": "attn_qkv",
    "out": "attn_out",
    "norm_mlp": "norm2",
    "up": "mlp.0",
    "down": "mlp.2",
    "modulation.linear": "adaLN_modulation",
}
INV_FREQ = "backbone.rotary_emb.inv_freq"
CONSTANTS = (INV_FREQ, "sampling_eps_min", "sampling_eps_max")  # stored there; computed or unused here


def published_name(name: str) -> str:
    """The published name of one of our weights."""
    part, kind = name.rsplit(".", 1)
    if part == "backbone.embedding":
        return "backbone.vocab_embed.embedding"
    if part in _ROOT:
        return f"{_ROOT[part]}.{kind}"
    _, _, index, part = part.split(".", 3)  # backbone.layers.INDEX.PART
    return f"backbone.blocks.{index}.{_LAYER[part]}.{kind}"


def shape_of(their: Mapping[str, Any], origin: object) -> ModelConfig:
    """Our configuration for their config.json, which does not name end-of-text: the last token is assumed."""
    family = their.get("model_type")
    if family not in FAMILIES:
        raise CheckpointError(
            f"{origin} describes neither bd3lm nor mdlm: its model_type is {family!r} "
            "(dadlm convert --from-causal reads Llama-like models)"
        )
    fields = _FIELDS | ({"block_size": "block_size"} if family == "bd3lm" else {})
    single_block = their.get("block_size") == their.get("model_length")  # no clean text before it
    wanted = _WANTED if single_block else _WANTED | {"cross_attn": True}
    differences = [f"{name} is missing" for name in fields if name not in their]
    differences += [
        f"{name} is {their[name]!r}, expected {value!r}"
        for name, value in wanted.items()
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


@dataclass(frozen=True, kw_only=True)
class Notes:
    """The content of published.json."""

    config: dict[str, Any]
    """Their config.json."""
    bfloat16: list[str]
    """Tensors stored in bfloat16; the others are float32."""
    values: dict[str, Any]
    """Constants stored with the weights."""

    def tensors(self) -> dict[str, Tensor]:
        """The constants, as float32."""
        try:
            return {name: torch.tensor(value, dtype=torch.float32) for name, value in self.values.items()}
        except (TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{NOTES} is damaged ({error}): remove it to write float32") from error

    def check(self, config: ModelConfig, names: Collection[str]) -> None:
        """Refuse notes that do not fit this model, whose tensors are `names`: the file may be edited."""
        known = set(names).union(self.values)
        if not self.values.keys() <= set(CONSTANTS) or not all(name in known for name in self.bfloat16):
            raise CheckpointError(f"{NOTES} names tensors that this model lacks: remove it to write float32")
        shape = shape_of(self.config, NOTES)
        # Fields that only training or other families use may differ.
        same = ("family", "vocab_size", "context", "block", "layers", "width", "heads", "rope_theta")
        if any(getattr(shape, name) != getattr(config, name) for name in same):
            raise CheckpointError(f"{NOTES} belongs to another model: remove it to write float32")


def take_notes(their: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Notes:
    """The notes of a published folder."""
    return Notes(
        config=dict(their),
        bfloat16=sorted(name for name, tensor in tensors.items() if tensor.dtype == torch.bfloat16),
        values={name: tensors[name].tolist() for name in CONSTANTS if name in tensors},
    )


def read_notes(folder: Path) -> Notes | None:
    """The notes in one of our folders, if it has some."""
    file = folder / NOTES
    if not file.is_file():
        return None
    content = read_json(file)
    kinds = {"config": dict, "bfloat16": list, "values": dict}
    if {name: type(value) for name, value in content.items()} != kinds:
        raise CheckpointError(f"{file} is damaged: remove it to write float32")
    return Notes(**content)


def new_notes(config: ModelConfig) -> Notes:
    """Notes for a model that we trained, as its authors would have written them."""
    values: dict[str, Any] = {INV_FREQ: speeds(config).tolist()}
    their = {"model_type": config.family, "architectures": [config.family.upper()], "torch_dtype": "float32"}
    their |= {name: getattr(config, ours) for name, ours in _FIELDS.items()}
    their |= {"cond_dim": 128, "time_conditioning": False}
    if config.family == "bd3lm":
        interval = {"sampling_eps_min": 1e-3, "sampling_eps_max": 1.0}
        their |= {"block_size": config.block_size, "cross_attn": True, "adaln": True, "causal": False}
        their |= {"attn_backend": "sdpa", "var_min": False} | interval
        values |= interval
    return Notes(config=their, bfloat16=[], values=values)


def speeds(config: ModelConfig) -> Tensor:
    """Rotary embedding: radians per position for each pair of a head's dimensions."""
    width = config.width // config.heads
    return 1.0 / 10000.0 ** (torch.arange(0, width, 2).float() / width)

"""What our weights are called in the folders that BD3LM and MDLM published. Knows names only."""

_ROOT = {
    "backbone.embedding.weight": "backbone.vocab_embed.embedding",
    "backbone.norm.weight": "backbone.output_layer.norm_final.weight",
}
_LINEAR = {
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
LAYERS = "backbone.blocks."  # what the names of their layers begin with
INV_FREQ = "backbone.rotary_emb.inv_freq"
CONSTANTS = (INV_FREQ, "sampling_eps_min", "sampling_eps_max")  # stored there, computed or not needed here


def published_name(name: str) -> str:
    """The published name of one of our weights."""
    if name in _ROOT:
        return _ROOT[name]
    part, kind = name.rsplit(".", 1)
    if part in _LINEAR:
        return f"{_LINEAR[part]}.{kind}"
    _, _, index, part = part.split(".", 3)  # backbone.layers.INDEX.PART
    return f"{LAYERS}{index}.{_LAYER[part]}.{kind}"

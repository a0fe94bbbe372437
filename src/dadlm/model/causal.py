"""A pretrained causal language model of the Llama architecture → the backbone of ours (docs/causal.md).

Weights, tokenizer and chat template are taken over; a mask token is added. At block size 1, and as family ar,
the logits are those of the original; longer blocks have to be learned by further training.
"""

from pathlib import Path
from typing import Any, Literal

import tokenizers
import torch
from torch import Tensor

from dadlm.errors import CheckpointError, ConfigError
from dadlm.model import language_model_files
from dadlm.model.checkpoint import set_weights, weights, write_model
from dadlm.model.config import ModelConfig
from dadlm.model.files import whole_folder
from dadlm.model.network import Model
from dadlm.tokens import Tokenizer
from dadlm.tokens.chat import ChatTemplate


def convert_causal(source: str, out: str | Path, **options: Any) -> Model:
    """Convert `smollm2`, a folder, a .gguf file or a hub name to a folder of ours; options: `from_causal`."""
    place, label = language_model_files.locate(source)
    tokenizer, original, causal = language_model_files.load(place)
    if not causal:
        raise ConfigError(f"{label} is not a causal language model")
    model = from_causal(original, tokenizer, **options)
    with whole_folder(Path(out)) as folder:
        write_model(folder, model)  # not `save`, which would merge the adapters before they have learned
    return model


def from_causal(
    original: Any,
    tokenizer: Any,
    *,
    family: Literal["ar", "bd3lm"] = "bd3lm",
    block_size: int = 16,
    context: int = 1024,
    lora: int = 0,
    gated: bool = False,
) -> Model:
    """Our model, from a model and a tokenizer of `transformers`.

    `context` is cut to what the original was made for; `lora` is the rank of adapters that learn in place of
    its weights, 0 for none; `gated` adapters act on masked blocks only, and the model stays the original in
    mode ar.
    """
    if family not in ("ar", "bd3lm"):
        raise ConfigError(f"a causal model becomes ar or bd3lm, not {family}; train a dadlm from the bd3lm")
    _check_architecture(original.config)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise CheckpointError("the model's tokenizer has no tokenizer.json form, which ours are kept in")
    chat = ChatTemplate.of(tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token)
    copy = tokenizers.Tokenizer.from_str(backend.to_str())  # ours changes its settings
    ours = Tokenizer(copy, chat)
    shape = _shape(original.config, family, block_size, context)
    adapters = {"lora": lora, "lora_gated": gated, "causal_context": gated}
    config = ModelConfig(**shape, vocab_size=ours.vocab_size + 1, eot_id=ours.eot_id, **adapters)
    model = Model(config, ours).eval()
    tensors = _tensors(original.state_dict(), model.config)
    own = weights(model)
    tensors |= {name: own[name] for name in own if ".lora_" in name or name == "backbone.mask_change"}
    set_weights(model, tensors, "the causal model")
    return model


def _check_architecture(config: Any) -> None:
    """Refuse what would load but compute something else."""
    wanted = {"model_type": "llama", "hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
    differences = [
        f"{name} is {getattr(config, name, None)!r}, expected {value!r}"
        for name, value in wanted.items()
        if getattr(config, name, value) != value
    ]
    if (kind := _rope(config).get("rope_type", "default")) != "default":
        differences.append(f"rotary positions are scaled ({kind}), expected plain ones")
    if differences:
        listing = "\n  ".join(differences)
        raise CheckpointError(f"only plain Llama-architecture models can be converted:\n  {listing}")


def _rope(config: Any) -> dict[str, Any]:
    """Rotary settings, which transformers keeps in one field since release 5, in two before."""
    if together := getattr(config, "rope_parameters", None):
        return dict(together)
    scaling = getattr(config, "rope_scaling", None) or {}
    return {"rope_theta": getattr(config, "rope_theta", 10000.0)} | scaling


def _shape(config: Any, family: str, block_size: int, context: int) -> dict[str, Any]:
    if block_size < 1:
        raise ConfigError(f"block_size must be at least 1, got {block_size}")
    longest = min(context, config.max_position_embeddings)
    head, usual = getattr(config, "head_dim", None), config.hidden_size // config.num_attention_heads
    return {
        "family": family,
        "architecture": "llama",
        "context": longest // block_size * block_size if family == "bd3lm" else longest,
        "block_size": block_size,
        "layers": config.num_hidden_layers,
        "width": config.hidden_size,
        "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads,
        "head_width": None if head in (None, usual) else head,  # written only where it says something
        "mlp_width": config.intermediate_size,
        "rope_theta": float(_rope(config)["rope_theta"]),
        "norm_eps": config.rms_norm_eps,
        "tie_embedding": bool(config.tie_word_embeddings),
    }


def _tensors(theirs: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """The original's weights under our names, with a row for the mask."""
    tokens, embedding = config.mask_id, theirs["model.embed_tokens.weight"].float()
    if len(embedding) < tokens:
        raise CheckpointError(f"the tokenizer has {tokens} ids, the model only {len(embedding)} embeddings")
    embedding = embedding[:tokens]  # some models have spare ones behind the last token
    # The mask stands for any token: on average that is the average token.
    tensors = {
        "backbone.embedding.weight": torch.cat([embedding, embedding.mean(0, keepdim=True)]),
        "backbone.norm.weight": theirs["model.norm.weight"].float(),
    }
    if not config.tie_embedding:
        head = theirs["lm_head.weight"].float()[:tokens]
        tensors["head.linear.weight"] = torch.cat([head, torch.zeros_like(head[:1])])
    for layer in range(config.layers):
        for ours, parts in _LAYER.items():
            tensors[f"backbone.layers.{layer}.{ours}.weight"] = torch.cat(
                [theirs[f"model.layers.{layer}.{part}.weight"].float() for part in parts]
            )
    return tensors


_LAYER = {
    "norm_attention": ("input_layernorm",),
    "norm_mlp": ("post_attention_layernorm",),
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}

"""Folders as BD3LM and MDLM published theirs, made up: small, random, nothing zero."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from dadlm.errors import DadlmError
from dadlm.interop.convert import convert
from dadlm.tokens import Tokenizer, word_level

LAYERS, WIDTH, HEADS, LENGTH, BLOCK, VOCABULARY = 2, 32, 4, 16, 4, 30
WORDS = [f"w{i}" for i in range(VOCABULARY - 2)]  # and end-of-text; the mask is the last id
CONDITION = 128


def tokenizer(words: list[str] = WORDS) -> Tokenizer:
    return word_level(words)


def config(family: str = "bd3lm", **changes) -> dict:
    shape = {"vocab_size": VOCABULARY, "model_length": LENGTH, "hidden_dim": WIDTH, "n_blocks": LAYERS}
    content = {"model_type": family, **shape, "n_heads": HEADS, "dropout": 0.1, "cond_dim": CONDITION}
    content |= {"time_conditioning": False, "torch_dtype": "float32", "transformers_version": "4.38.2"}
    if family == "bd3lm":
        content |= {"block_size": BLOCK, "cross_attn": True, "adaln": True, "causal": False, "var_min": True}
        content |= {"sampling_eps_min": 0.3, "sampling_eps_max": 0.8, "attn_backend": "flex"}
        content |= {"auto_map": {"AutoModelForMaskedLM": "modeling_bd3lm.BD3LM"}}
    return content | changes


def weights(family: str = "bd3lm", seed: int = 0) -> dict[str, Tensor]:
    """Names and shapes as the notes list them."""
    linear = {
        "backbone.sigma_map.mlp.0": (CONDITION, 256),
        "backbone.sigma_map.mlp.2": (CONDITION, CONDITION),
    }
    plain = {"backbone.vocab_embed.embedding": (VOCABULARY, WIDTH)}
    for i in range(LAYERS):
        at = f"backbone.blocks.{i}"
        plain |= {f"{at}.norm1.weight": (WIDTH,), f"{at}.norm2.weight": (WIDTH,)}
        plain |= {f"{at}.attn_qkv.weight": (3 * WIDTH, WIDTH), f"{at}.attn_out.weight": (WIDTH, WIDTH)}
        linear |= {f"{at}.mlp.0": (4 * WIDTH, WIDTH), f"{at}.mlp.2": (WIDTH, 4 * WIDTH)}
        linear |= {f"{at}.adaLN_modulation": (6 * WIDTH, CONDITION)}
    plain |= {"backbone.output_layer.norm_final.weight": (WIDTH,)}
    linear |= {"backbone.output_layer.linear": (VOCABULARY, WIDTH)}
    linear |= {"backbone.output_layer.adaLN_modulation": (2 * WIDTH, CONDITION)}
    shapes = plain | {f"{name}.weight": shape for name, shape in linear.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in linear.items()}
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in sorted(shapes.items()):
        spread = 0.1 if "sigma_map" in name or "adaLN" in name else 0.3
        centre = 1.0 if "norm" in name else 0.0
        tensors[name] = centre + spread * torch.randn(shape, generator=generator)
    head = WIDTH // HEADS
    tensors["backbone.rotary_emb.inv_freq"] = 1.0 / (10000 ** (torch.arange(0, head, 2).float() / head))
    if family == "bd3lm":
        tensors |= {"sampling_eps_min": torch.tensor(0.3), "sampling_eps_max": torch.tensor(0.8)}
    return tensors


def write(
    folder: Path,
    family: str = "bd3lm",
    tensors: dict[str, Tensor] | None = None,
    *,
    half: bool = False,
    parts: int = 1,
    pickled: bool = False,
    **changes,
) -> dict[str, Tensor]:
    """Write a folder and give back what is in it; `half`: bfloat16, but for the constants."""
    tensors = weights(family) if tensors is None else tensors
    if half:
        tensors = {n: t if n.startswith("sampling") else t.bfloat16() for n, t in tensors.items()}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config(family, **changes), indent=2) + "\n")
    tokenizer().save(folder)
    stem, suffix = ("pytorch_model", ".bin") if pickled else ("model", ".safetensors")
    store = torch.save if pickled else lambda part, file: save_file(part, file, metadata={"format": "pt"})
    if parts == 1:
        store(tensors, folder / f"{stem}{suffix}")
        return tensors
    names, places = sorted(tensors), {}
    for index in range(parts):
        file = f"{stem}-{index + 1:05d}-of-{parts:05d}{suffix}"
        store({name: tensors[name] for name in names[index::parts]}, folder / file)
        places |= dict.fromkeys(names[index::parts], file)
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / f"{stem}{suffix}.index.json").write_text(json.dumps(index))
    return tensors


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def refusal(folder: Path, **how) -> str:
    """What the error of `convert` says; and that nothing at all has changed on the disk."""
    before, out = content(folder.parent), folder.parent / "out"
    with pytest.raises(DadlmError) as caught:
        convert(folder, out, **how)
    assert content(folder.parent) == before and not out.exists()
    assert not [path for path in folder.parent.iterdir() if path.name.startswith(".")]
    return str(caught.value)

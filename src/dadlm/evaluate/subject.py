"""The description of a model in the results of an evaluation."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from dadlm import __version__
from dadlm.decode import DecodeSettings
from dadlm.model import Model, ModelConfig
from dadlm.model.checkpoint import weights

NAMES = {"ar": "AR", "mdlm": "MDLM", "bd3lm": "BD3LM", "dadlm": "DA-DLM"}


def describe(model: Model, name: str = "") -> dict[str, Any]:
    """Name, family and shape of a model, and everything else that may change its results."""
    config = model.config
    metadata: dict[str, Any] = {"name": name or NAMES[config.family], "family": config.family}
    if config.family in ("bd3lm", "dadlm"):
        metadata["block_size"] = config.block_size
    if config.family == "dadlm":
        metadata |= {"candidates": config.candidates, "expand_at": config.expand_at}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return metadata | {
        "context": config.context,
        "parameters": parameters,
        "weights": fingerprint(model),
        "config": hashlib.sha256(json.dumps(_shape(config), sort_keys=True).encode()).hexdigest()[:16],
        "tokenizer": None if model.tokenizer is None else model.tokenizer.fingerprint[:16],
        "device": model.device.type,
        "dtype": str(model.backbone.embedding.weight.dtype).removeprefix("torch."),
        "version": __version__,
    }


def described(settings: DecodeSettings) -> dict[str, Any]:
    """Settings as an evaluation stores them. Newer ones are left out where they have no effect, so that what
    was begun before they existed can be resumed."""
    idle = {
        "mode": settings.mode == "diffusion",
        "bound": settings.sampler != "entropy",
        "shortlist": settings.shortlist is None,
        "top_k": settings.top_k is None,
        "tree": settings.tree is None,
        "drawn": not settings.drawn,
        "one_pass": not settings.one_pass,
    }
    return {name: value for name, value in asdict(settings).items() if not idle.get(name)}


def _shape(config: ModelConfig) -> dict[str, Any]:
    """The same for a model's configuration."""
    no_edges = config.edge == "none"
    idle = {"edge": no_edges, "edge_rank": no_edges, "edge_second_rank": not config.edge_second_rank}
    idle |= {"causal_context": not config.causal_context, "lora_gated": not config.lora_gated}
    return {name: value for name, value in asdict(config).items() if not idle.get(name)}


def essence(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a description that is kept with a model's texts: it finds the paper's row for them."""
    return {name: metadata.get(name) for name in ("family", "block_size", "context", "parameters")}


def fingerprint(model: Model) -> str:
    """A hash of the names and values of all weights."""
    digest = hashlib.sha256()
    for name, tensor in weights(model).items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]

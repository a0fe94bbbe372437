"""What an evaluation says of the model it measured."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from dadlm.model import Model
from dadlm.model.checkpoint import weights

NAMES = {"ar": "AR", "mdlm": "MDLM", "bd3lm": "BD3LM", "dadlm": "DA-DLM"}


def describe(model: Model, name: str = "") -> dict[str, Any]:
    """Name, family and shape of a model, and a hash of its weights."""
    config = model.config
    facts: dict[str, Any] = {"name": name or NAMES[config.family], "family": config.family}
    if config.family in ("bd3lm", "dadlm"):
        facts["block_size"] = config.block_size
    if config.family == "dadlm":
        facts |= {"candidates": config.candidates, "expand_at": config.expand_at}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return facts | {"context": config.context, "parameters": parameters, "weights": fingerprint(model)}


def essence(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What of a description has to travel with a model's texts: the paper's tables are found by it."""
    return {name: facts.get(name) for name in ("family", "block_size", "context", "parameters")}


def fingerprint(model: Model) -> str:
    """A hash of the names and values of all weights."""
    digest = hashlib.sha256()
    for name, tensor in weights(model).items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]

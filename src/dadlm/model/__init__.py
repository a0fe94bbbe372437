"""Nodes → scores: the networks of all four families, and their folders on disk."""

from dadlm.model.checkpoint import find_device, load, save
from dadlm.model.config import Mode, ModelConfig
from dadlm.model.context import Context
from dadlm.model.modes import in_mode
from dadlm.model.network import Model, eval_mode
from dadlm.model.scores import Denoised, Scores

__all__ = [
    "Context",
    "Denoised",
    "Mode",
    "Model",
    "ModelConfig",
    "Scores",
    "eval_mode",
    "find_device",
    "in_mode",
    "load",
    "save",
]

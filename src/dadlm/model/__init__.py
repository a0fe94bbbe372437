"""Nodes → scores: the networks of all four families, and their folders on disk."""

from dadlm.model.backbone import Context
from dadlm.model.checkpoint import find_device, load, save
from dadlm.model.config import ModelConfig
from dadlm.model.network import Denoised, Model, Scores, eval_mode

__all__ = [
    "Context",
    "Denoised",
    "Model",
    "ModelConfig",
    "Scores",
    "eval_mode",
    "find_device",
    "load",
    "save",
]

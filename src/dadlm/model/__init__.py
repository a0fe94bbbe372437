"""Nodes → scores: the networks of all four families, and their folders on disk."""

from dadlm.model.checkpoint import find_device, load, save
from dadlm.model.config import ModelConfig
from dadlm.model.context import Context
from dadlm.model.network import Denoised, Model

__all__ = ["Context", "Denoised", "Model", "ModelConfig", "find_device", "load", "save"]

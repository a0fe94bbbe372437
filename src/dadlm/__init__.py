"""DA-DLM: diffusion language models whose masked tokens are chosen together, along a path of a graph."""

from dadlm import dag
from dadlm.decode import DecodeSettings, Generated, StepEvent, generate, stream
from dadlm.errors import CheckpointError, ConfigError, DadlmError, DataError, TrainingError
from dadlm.model import Model, ModelConfig, load, save
from dadlm.tokens import Tokenizer

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DadlmError",
    "DataError",
    "DecodeSettings",
    "Generated",
    "Model",
    "ModelConfig",
    "StepEvent",
    "Tokenizer",
    "TrainingError",
    "dag",
    "generate",
    "load",
    "save",
    "stream",
]

"""DA-DLM: diffusion language models whose masked tokens are chosen together, along a path of a graph."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dadlm import dag
from dadlm.decode import DecodeOptions, DecodeSettings, Generated, StepEvent, generate, stream
from dadlm.errors import CheckpointError, ConfigError, DadlmError, DataError, TrainingError
from dadlm.model import Model, ModelConfig, load, save
from dadlm.tokens import Tokenizer

if TYPE_CHECKING:
    from dadlm import evaluate

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DadlmError",
    "DataError",
    "DecodeOptions",
    "DecodeSettings",
    "Generated",
    "Model",
    "ModelConfig",
    "StepEvent",
    "Tokenizer",
    "TrainingError",
    "dag",
    "evaluate",
    "generate",
    "load",
    "save",
    "stream",
]


def __getattr__(name: str) -> Any:
    """`dadlm.evaluate` is imported when it is first asked for: writing text does not need it."""
    if name == "evaluate":
        return import_module("dadlm.evaluate")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""DA-DLM: diffusion language models whose masked tokens are chosen together, along a path of a graph."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dadlm import dag, evaluate
    from dadlm.decode import DecodeOptions, DecodeSettings, Generated, StepEvent, generate, stream
    from dadlm.errors import CheckpointError, ConfigError, DadlmError, DataError, TrainingError
    from dadlm.model import Model, ModelConfig, load, save
    from dadlm.tokens import Tokenizer

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

_HOMES = {
    "decode": ("DecodeOptions", "DecodeSettings", "Generated", "StepEvent", "generate", "stream"),
    "errors": ("CheckpointError", "ConfigError", "DadlmError", "DataError", "TrainingError"),
    "model": ("Model", "ModelConfig", "load", "save"),
    "tokens": ("Tokenizer",),
}


def __getattr__(name: str) -> Any:
    """Names are imported when they are used: torch takes seconds, in which `dadlm --help` has answered and a
    Ctrl-C is not left to the interpreter."""
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is not None:
        return getattr(import_module(f"dadlm.{home}"), name)
    if name.startswith("_") or find_spec(f"dadlm.{name}") is None:
        raise AttributeError(f"module 'dadlm' has no attribute {name!r}")
    return import_module(f"dadlm.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

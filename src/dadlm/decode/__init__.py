"""One denoising step → text: path, remask, infill, commit, for all families."""

from dadlm.decode.engines import release_engine
from dadlm.decode.events import StepEvent
from dadlm.decode.generate import Filled, Generated, fill_gaps, generate, stream
from dadlm.decode.named import release_models
from dadlm.decode.settings import DecodeOptions, DecodeSettings, settings_for
from dadlm.model import Model

# As methods, which the layer of models cannot have by itself: it knows nothing of decoding.
Model.generate, Model.stream = generate, stream

__all__ = [
    "DecodeOptions",
    "DecodeSettings",
    "Filled",
    "Generated",
    "StepEvent",
    "fill_gaps",
    "generate",
    "release_engine",
    "release_models",
    "settings_for",
    "stream",
]

"""One denoising step → text: path, remask, infill, commit, for all families."""

from dadlm.decode.events import StepEvent
from dadlm.decode.generate import Filled, Generated, fill_gaps, generate, release_engine, stream
from dadlm.decode.settings import DecodeSettings, settings_for

__all__ = [
    "DecodeSettings",
    "Filled",
    "Generated",
    "StepEvent",
    "fill_gaps",
    "generate",
    "release_engine",
    "settings_for",
    "stream",
]

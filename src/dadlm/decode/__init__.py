"""One denoising step → text: path, remask, infill, commit, for all families."""

from dadlm.decode.events import StepEvent
from dadlm.decode.fill import Filled, fill
from dadlm.decode.generate import Generated, generate, stream
from dadlm.decode.settings import DecodeSettings

__all__ = ["DecodeSettings", "Filled", "Generated", "StepEvent", "fill", "generate", "stream"]

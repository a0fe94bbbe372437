"""dadlm evaluate latency: time of a complete denoising step, and memory."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dadlm.cli.evaluate.common import Common, load_models
from dadlm.evaluate import LatencySettings, latency


@dataclass(frozen=True, kw_only=True)
class Options(Common, LatencySettings):
    model: tuple[str, ...] = ("bd3lm", "dadlm")
    """Models to measure, by name or folder; one BD3LM among them makes ratios possible."""
    batch_size: int = 32
    """Texts side by side; the paper has 32."""
    new_tokens: int | None = None
    """Length of the text whose memory is watched; None: to the end of the context, on a CPU 64."""


def measure(options: Options, folder: Path) -> dict[str, Any]:
    models = load_models(options.model, options)
    # 64 tokens take a CPU seconds; in a short context there is no choice.
    slow = all(model.device.type == "cpu" and model.config.context >= 256 for model in models.values())
    if models and slow and not options.new_tokens:
        options = replace(options, new_tokens=64)
    return latency(models, options, out=folder, quiet=options.json)

"""dadlm evaluate generation: completions over a grid of decoding settings, their quality and their cost."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dadlm.cli.evaluate.common import OnText, load_models
from dadlm.evaluate import GenerationSettings, generation


@dataclass(frozen=True, kw_only=True)
class Options(OnText, GenerationSettings):
    model: tuple[str, ...] = ("bd3lm", "dadlm")
    """Models to compare, by name or folder; a BD3LM of the same block size makes an adjusted TPF possible."""
    configurations: tuple[str, ...] = ("quick",)
    """Presets (quick, paper, paper-16, paper-8, paper-4) or single ones: FH T=8 T=8/infill=2,0.5 conf=0.9."""

    embedder: str = "smollm2"
    """Features for MAUVE: smollm2, minilm, gpt2-large, a Hugging Face name or folder; none: no MAUVE."""
    judge_lm: str = "smollm2"
    """Language model for perplexity: smollm2, a Hugging Face name or folder; none: no perplexity."""


def measure(options: Options, folder: Path) -> dict[str, Any]:
    models = load_models(options.model, options)
    shortest = min(models.values(), key=lambda model: model.config.context)
    rows, data = options.rows(shortest)
    without = {name: None for name in ("embedder", "judge_lm") if getattr(options, name) in ("", "none")}
    return generation(models, rows, options, out=folder, quiet=options.json, data=data, **without)

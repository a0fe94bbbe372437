"""dadlm evaluate latency: time of a complete denoising step, and memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from dadlm.cli.evaluate.common import Common, load_models
from dadlm.evaluate import latency
from dadlm.model import Model


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    model: tuple[str, ...] = ("bd3lm", "dadlm")
    """Models to measure, by name or folder; one BD3LM among them makes ratios possible."""
    batch_size: int = 32
    """Texts side by side; the paper has 32."""
    prompt_tokens: int | None = None
    """Tokens of the random prompts; None: 64, or half a context below 128."""
    new_tokens: int | None = None
    """Length of the text whose memory is watched; None: to the end of the context, on a CPU 64."""
    steps: int = 10
    """Denoising steps that are measured."""
    warmup: int = 10
    """Denoising steps before them."""


def measure(options: Options, folder: Path) -> dict[str, Any]:
    models = load_models(options.model, options)
    on_cpu = all(model.device.type == "cpu" for model in models.values())
    return latency(
        models,
        prompt_tokens=options.prompt_tokens,
        new_tokens=options.new_tokens or (_few(models) if on_cpu else None),
        batch_size=options.batch_size,
        steps=options.steps,
        warmup=options.warmup,
        seed=options.seed,
        out=folder,
        quiet=options.json,
    )


def _few(models: Mapping[str, Model]) -> int | None:
    """Tokens that take a CPU seconds; None where a context is too short for a choice."""
    return 64 if models and all(model.config.context >= 256 for model in models.values()) else None


def table(result: dict[str, Any]) -> Table:
    table = Table("model", "N", "ms per step", "× BD3LM", "MiB start", "end", "peak")
    for row in result["rows"]:
        size, ratio, memory = row["model"].get("block_size"), row["ratio_to_bd3lm"], row["memory_mib"]
        table.add_row(
            row["model"]["name"],
            "–" if size is None else str(size),
            f"{row['ms_median']:.2f} [{row['ms_min']:.2f}, {row['ms_max']:.2f}]",
            "–" if ratio is None else f"{ratio:.3f}",
            *("–" if memory[when] is None else f"{memory[when]:.0f}" for when in ("start", "end", "peak")),
        )
    return table


def notes(result: dict[str, Any]) -> list[str]:
    timed = " or ".join(map(str, sorted({row["updates"] for row in result["rows"]})))
    return [
        f"{result['device']}, {result['threads']} threads, batch size {result['batch_size']}; "
        f"median, least and most of {timed} steps after {result['warmup']}",
        f"memory: {result['memory_kind']}",
        "measurements are kept and shown again: remove their folder to measure anew",
    ]

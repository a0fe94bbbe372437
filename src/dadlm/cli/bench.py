"""dadlm bench: how fast this machine decodes and trains, beside its ceilings."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from dadlm.cli.options import JsonOption, joined, subcommand, usage_of
from dadlm.decode.pair import LOOKUP
from dadlm.decode.picture import check_name
from dadlm.evaluate.work import write_result
from dadlm.model import find_device, load
from dadlm.recipes import recipe


@dataclass(frozen=True, kw_only=True)
class _Common(JsonOption):
    device: str = "auto"
    """cpu, cuda, or auto (cuda if available)."""
    out: str = ""
    """Also write the result to this JSON file."""


@dataclass(frozen=True, kw_only=True)
class _Models(_Common):
    scale: str = ""
    """Size of the models: paper, lab, small or tour. Empty: paper on cuda, small on a cpu."""


@dataclass(frozen=True, kw_only=True)
class _Decode(_Models):
    """ms per denoising step, and whole texts, for AR, BD3LM and DA-DLM of one size"""

    block_sizes: tuple[int, ...] = ()
    """Block sizes. Empty: 16 8 4, or the recipe's own."""
    batches: tuple[int, ...] = ()
    """Batch sizes. Empty: 32 8 1; on a cpu 4 1."""
    texts: bool = True
    """Also time whole texts."""
    plot: str = ""
    """Plot milliseconds and their theoretical minimum over batch size to this file (.svg, .png or .pdf)."""


@dataclass(frozen=True, kw_only=True)
class _Train(_Models):
    """ms per optimiser step of every family, and the share of the machine's matrix throughput"""

    rows: int = 0
    """Rows of a batch. 0: 32; on a cpu 4."""
    compile: bool = True
    """Use torch.compile (on cuda)."""
    only: tuple[str, ...] = ()
    """Only systems whose names contain one of these words."""


@dataclass(frozen=True, kw_only=True)
class _Kernels(_Common):
    """fused kernels compared with plain torch"""

    rows: int = 32
    """Rows decoded at once."""


@dataclass(frozen=True, kw_only=True)
class _Lossless(_Common):
    """mode lossless compared with mode ar: tokens per second, tokens per cycle, time of a cycle"""

    model: str = "ar"
    """The target model: an AR model, or one with causal_context, which also drafts."""
    draft: str = ""
    """The model that drafts, or lookup (prompt lookup).
    Empty: the model itself if it can draft, otherwise lookup."""
    batches: tuple[int, ...] = ()
    """Batch sizes. Empty: 1 32; on a cpu 1."""
    trees: tuple[int, ...] = (0, 16, 64)
    """Tree sizes to measure, in addition to the automatic choice; 0: a sampled chain."""
    tokens: int = 128
    """Tokens per text."""
    temperature: float = 0.0
    dtype: Literal["float32", "bfloat16"] = "float32"


def run(words: list[str]) -> int:
    kinds = {"decode": _Decode, "train": _Train, "kernels": _Kernels, "lossless": _Lossless}
    kind = subcommand(words, kinds, usage_of("bench", kinds), "say what to measure")
    if kind is None:
        return 0
    options = tyro.cli(kind, args=joined(kind, words[1:]), prog=f"dadlm bench {words[0]}")
    plot = options.plot if isinstance(options, _Decode) else ""
    if plot:
        check_name(plot)  # before anything is measured
    result = _measure(options)
    if plot:
        from dadlm.bench import draw_steps

        draw_steps(result, plot)
    if options.out:
        write_result(Path(options.out), result)
    if options.json:
        print(json.dumps(result))
    else:
        for name in ("steps", "texts", "pieces"):
            if result.get(name):
                Console().print(_table(f"{words[0]}: {result['device']}, {result['dtype']}", result[name]))
    return 0


def _measure(options: _Common) -> dict[str, Any]:
    from dadlm.bench import bench_decode, bench_kernels, bench_lossless, bench_train

    place = str(find_device(options.device))
    on_gpu = place.startswith("cuda")
    if isinstance(options, _Kernels):
        return bench_kernels(options.rows, device=place)
    if isinstance(options, _Lossless):
        model = load(options.model, place, options.dtype)
        named = options.draft not in ("", LOOKUP)
        draft = load(options.draft, place, options.dtype) if named else options.draft or None
        batches = options.batches or ((1, 32) if on_gpu else (1,))
        return bench_lossless(model, draft, batches, options.trees, options.tokens, options.temperature)
    assert isinstance(options, _Decode | _Train)
    scale = options.scale or ("paper" if on_gpu else "small")
    if isinstance(options, _Decode):
        own = recipe(f"{scale}-dadlm").model.block_size
        sizes = options.block_sizes or ((16, 8, 4) if scale == "paper" else (own,))
        batches = options.batches or ((32, 8, 1) if on_gpu else (4, 1))
        prefix = {"paper": 512, "lab": 512, "small": 64, "tour": 8}.get(scale, 64)
        return bench_decode(scale, sizes, batches, prefix, texts=options.texts, device=place)
    compile_, rows = options.compile and on_gpu, options.rows or (32 if on_gpu else 4)
    return bench_train(scale, rows, compile=compile_, only=options.only, device=place)


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=title)
    for name, value in rows[0].items():
        table.add_column(name.replace("_", " "), justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:,.3f}" if isinstance(value, float) else str(value)

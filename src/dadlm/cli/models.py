"""dadlm models: the models that ship with the package, and those that packages of others carry."""

import json
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from dadlm.cli.options import JsonOption, parse
from dadlm.errors import CheckpointError
from dadlm.model.checkpoint import count_parameters, read_config
from dadlm.model.packaged import source_of
from dadlm.model.pretrained import ABOUT, DEFAULT, PACKAGED, shipped, weight_files


@dataclass(frozen=True)
class Options(JsonOption):
    pass


def run(words: list[str]) -> int:
    options = parse(Options, words, "models")
    found = [_describe(name) for name in ABOUT if _is_here(name)] + [_packaged(name) for name in PACKAGED]
    if options.json:
        print(json.dumps(found, ensure_ascii=False))
        return 0
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("name", "family"):
        table.add_column(name, no_wrap=True)
    for name in ("N", "K", "edges", "parameters", "MB"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("what for")
    for one in found:
        edges = " + ".join(str(rank) for rank in (one["edge_rank"], one["edge_second_rank"]) if rank)
        numbers = *(str(one[key] or "") for key in ("block_size", "candidates")), edges
        size = f"{one['bytes'] / 1e6:.1f}" if one["bytes"] else ""
        table.add_row(one["name"], one["family"], *numbers, f"{one['parameters']:,}", size, one["about"])
    Console(highlight=False).print(table)
    print(
        "N: tokens of a block; K: candidates of a position; edges: their ranks, of first and second order. "
        "All that ship are in 8 bits."
    )
    for name in PACKAGED:
        if source_of(name) is None:
            print(f"{name} does not ship: {PACKAGED[name].install}")
    print(f"--model takes these names, a folder, a run or a Hugging Face name; generate's default: {DEFAULT}")
    return 0


def _is_here(name: str) -> bool:
    try:
        return shipped(name) is not None
    except CheckpointError:
        return False


def _describe(name: str) -> dict[str, Any]:
    folder = shipped(name)
    assert folder is not None
    config = read_config(folder)
    return {
        "name": name,
        "family": config.family,
        "block_size": config.block_size if config.denoises_blocks else None,
        "candidates": config.candidates if config.family == "dadlm" else None,
        "edge_rank": config.edge_rank if config.edge != "none" else None,
        "edge_second_rank": config.edge_second_rank or None,
        "context": config.context,
        "parameters": count_parameters(config)["total"],
        "bytes": sum(file.stat().st_size for file in weight_files(folder)),
        "about": ABOUT[name],
    }


def _packaged(name: str) -> dict[str, Any]:
    """A model that a package of somebody else carries, which may not be installed."""
    source = source_of(name)
    return dict.fromkeys(("block_size", "candidates", "edge_rank", "edge_second_rank")) | {
        "name": name,
        "family": "ar",
        "context": PACKAGED[name].context,
        "parameters": PACKAGED[name].parameters,
        "bytes": None if source is None else source.stat().st_size,
        "about": PACKAGED[name].about,
    }

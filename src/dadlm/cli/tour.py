"""dadlm tour: the idea at work, in front of you."""

import json
from dataclasses import dataclass
from pathlib import Path

import tyro

from dadlm.tour import take_tour


@dataclass(frozen=True)
class Options:
    out: str = "tour"
    """Folder for models, pictures and tour.json."""
    seed: int = 0
    """Decides the language, the weights and the samples."""
    json: bool = False
    """Print one JSON object instead of tables."""


def run(words: list[str]) -> int:
    options = tyro.cli(Options, args=words, prog="dadlm tour", config=(tyro.conf.FlagCreatePairsOff,))
    result = take_tour(Path(options.out), options.seed, quiet=options.json)
    if options.json:
        print(json.dumps(result))
    return 0

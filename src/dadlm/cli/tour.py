"""dadlm tour: the idea at work, in front of you."""

import json
from dataclasses import dataclass
from pathlib import Path

from dadlm.cli.options import JsonOption, parse, wide_seed


@dataclass(frozen=True)
class Options(JsonOption):
    out: str = "tour"
    """Folder for models, pictures and tour.json."""
    edges: bool = False
    """The second tour: all phrases share a word, and token edges are compared with the graph."""
    seed: int = 0
    """Seed of the language, the weights and the samples."""


def run(words: list[str]) -> int:
    from dadlm.tour import take_tour

    options = parse(Options, words, "tour")
    result = take_tour(Path(options.out), wide_seed(options.seed), options.json, options.edges)
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
    return 0

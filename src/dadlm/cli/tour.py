"""dadlm tour: the idea at work, in front of you."""

import json
from dataclasses import dataclass
from pathlib import Path

from dadlm.cli.options import JsonOption, parse
from dadlm.errors import ConfigError
from dadlm.tour import complete_side_by_side, take_tour

_SEEDS = 16  # those that follow it are used too


@dataclass(frozen=True)
class Options(JsonOption):
    prompt: str | None = None
    """Train nothing, but let the models that ship with dadlm (AR, BD3LM, DA-DLM) complete this text."""
    out: str = "tour"
    """Folder for models, pictures and tour.json; with --prompt, for a picture and prompt.json."""
    edges: bool = False
    """The second tour: all phrases share a word, and token edges stand beside the graph."""
    seed: int = 0
    """Decides the language, the weights and the samples."""


def run(words: list[str]) -> int:
    options = parse(Options, words, "tour")
    if not -(2**63) <= options.seed < 2**63 - _SEEDS:
        raise ConfigError("seed must fit into 64 bits")
    if options.edges and options.prompt is not None:
        raise ConfigError("--edges is a tour that trains: leave --prompt out")
    out, seed, quiet = Path(options.out), options.seed, options.json
    if options.prompt is None:
        result = take_tour(out, seed, quiet, options.edges)
    else:
        result = complete_side_by_side(out, options.prompt, seed, quiet)
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
    return 0

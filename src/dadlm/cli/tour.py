"""dadlm tour: the idea at work, in front of you."""

import json
from dataclasses import dataclass
from pathlib import Path

import tyro

from dadlm.errors import ConfigError
from dadlm.tour import complete_side_by_side, take_tour

_SEEDS = 16  # that follow it are in use, too


@dataclass(frozen=True)
class Options:
    prompt: str | None = None
    """Train nothing, but let the models that ship with dadlm (AR, BD3LM, DA-DLM) complete this text."""
    out: str = "tour"
    """Folder for models, pictures and tour.json; with --prompt, for a picture and prompt.json."""
    seed: int = 0
    """Decides the language, the weights and the samples."""
    json: bool = False
    """Print one JSON object instead of tables."""


def run(words: list[str]) -> int:
    options = tyro.cli(Options, args=words, prog="dadlm tour", config=(tyro.conf.FlagCreatePairsOff,))
    if not -(2**63) <= options.seed < 2**63 - _SEEDS:
        raise ConfigError("seed must fit into 64 bits")
    if options.prompt is None:
        result = take_tour(Path(options.out), options.seed, quiet=options.json)
    else:
        result = complete_side_by_side(Path(options.out), options.prompt, options.seed, quiet=options.json)
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
    return 0

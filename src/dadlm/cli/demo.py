"""dadlm demo: the idea and real text, by models that ship with the package, in half a minute."""

import json
from dataclasses import dataclass
from pathlib import Path

from dadlm.cli.options import JsonOption, parse, wide_seed


@dataclass(frozen=True)
class Options(JsonOption):
    prompt: str = "The history of"
    """Prompt that the models of real text complete."""
    out: str = "demo"
    """Folder for pictures and demo.json."""
    seed: int = 0
    """Seed of everything that is sampled."""


def run(words: list[str]) -> int:
    from dadlm.tour import show_demo

    options = parse(Options, words, "demo")
    result = show_demo(Path(options.out), options.prompt, wide_seed(options.seed), options.json)
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
    return 0

"""dadlm evaluate KIND: measure, write KIND.json, show it.

A kind is a module here, named like the function of `dadlm.evaluate` that it calls: its `Options`, how they
are measured, and what a person is shown of the result.
"""

import json
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from dadlm.cli.evaluate.common import parse, show
from dadlm.errors import ConfigError
from dadlm.evaluate.work import write_result

KINDS = {
    "reconstruction": "conditional block reconstruction, alone or paired against a second model",
    "perplexity": "a perplexity that holds for every family: exact (AR) or a valid bound",
    "generation": "completions over a grid of decoding settings: MAUVE, judge perplexity, TPF, the figure",
    "summarisation": "ROUGE, tokens per forward pass and the lead-sentence baseline",
    "judge": "two sets of samples compared in pairs by a language model",
    "latency": "time of a complete denoising step, and memory",
}
USAGE = "\n".join(
    [
        "usage: dadlm evaluate KIND [options]\n",
        *(f"  {name:15s} {what}" for name, what in KINDS.items()),
        "\ndadlm evaluate KIND --help lists the options. Each writes KIND.json into --out;",
        "started again, it goes on where it stopped.",
    ]
)


def run(words: list[str]) -> int:
    if words and words[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if not words or words[0] not in KINDS:
        said = f"unknown kind of evaluation {words[0]!r}" if words else "say what to evaluate"
        raise ConfigError(f"{said}\n{USAGE}")
    kind, *words = words
    module = import_module(f"dadlm.cli.evaluate.{kind}")
    options = parse(module.Options, words, kind)
    folder = Path(options.out or f"evaluation/{kind}")
    if folder.is_file():
        raise ConfigError(f"{folder} is a file: --out must be a folder")
    command = shlex.join(["dadlm", "evaluate", kind, *_told(words)])
    result = module.measure(options, folder) | {"command": command}
    file = folder / f"{kind}.json"
    write_result(file, result)
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        show(module.table(result), [*module.notes(result), str(file)])
    return 0


def _told(words: list[str]) -> Iterator[str]:
    """The words of a command without what may be secret, more fields of a request; keys are no words."""
    for before, word in zip(["", *words], words, strict=False):
        name = word.partition("=")[0]
        yield "..." if before == "--body" else f"{name}=..." if name == "--body" and name != word else word

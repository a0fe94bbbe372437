"""dadlm evaluate KIND: measure, write KIND.json, show it.

A kind is a module here, named like the function of `dadlm.evaluate` that it calls: its `Options`, how they
are measured, and what a person is shown of the result.
"""

import json
import shlex
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
        raise ConfigError("say what to evaluate\n" + USAGE)
    kind, *words = words
    module = import_module(f"dadlm.cli.evaluate.{kind}")
    options = parse(module.Options, words, kind)
    folder = Path(options.out or f"evaluation/{kind}")
    # Safe to keep: keys of servers are read from the environment only.
    command = shlex.join(["dadlm", "evaluate", kind, *words])
    result = module.measure(options, folder) | {"command": command}
    file = folder / f"{kind}.json"
    write_result(file, result)
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        show(module.table(result), [*module.notes(result), str(file)])
    return 0

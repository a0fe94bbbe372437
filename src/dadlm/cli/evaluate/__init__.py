"""dadlm evaluate KIND: one module for each kind, named like the function of `dadlm.evaluate` it calls."""

from importlib import import_module

from dadlm.errors import ConfigError

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
    return import_module(f"dadlm.cli.evaluate.{words[0]}").run(words[1:])

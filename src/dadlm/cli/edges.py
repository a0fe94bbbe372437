"""dadlm edges: give a trained model token edges that are counted from text, without training it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.table import Table

from dadlm.cli.options import JsonOption, open_model, parse, subcommand
from dadlm.errors import ConfigError
from dadlm.model import save
from dadlm.tokens import Rows, prepare
from dadlm.train.edges import choose_scale, count_pairs, decompose, fit, pair_nll, set_edges, with_edges

_USAGE = """usage: dadlm edges count TEXT --out FOLDER [options]

  count    count which tokens follow which in a text, and save the model with edges that say so

dadlm edges count --help lists the options."""
_SCALES = (0.0, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1)


@dataclass(frozen=True)
class _Count(JsonOption):
    """Count pairs of neighbouring tokens, fit edges of a low rank to them, and save the model with these.
    Their weight is chosen by the likelihood of masked blocks in the end of the text, which is not counted."""

    text: tyro.conf.Positional[str]
    """A .txt, .jsonl, .jsonl.zst or .parquet file, a folder or pattern of these, or hf:NAME."""
    out: str
    """Folder for the model with edges."""
    model: str = "dadlm"
    """A bd3lm or dadlm model without edges: its name or folder."""
    rank: int = 128
    """Rank of the edges; each doubling says a little more and costs as many parameters again."""
    tokens: int = 20_000_000
    """Tokens to count at most."""
    steps: int = 200
    """Steps of the fit."""
    seed: int = 0
    """Of the fit."""
    bits: int = 32
    """Bits of a stored weight: 32, or 8 for a folder of a quarter the size."""
    text_field: str = "text"
    """Field that holds the text in records."""
    cache: str = ".dadlm-cache"
    """Folder for the tokenised text."""


def run(words: list[str]) -> int:
    kind = subcommand(words, {"count": _Count}, _USAGE, "say what to do with edges")
    if kind is None:
        return 0
    options = parse(kind, words[1:], "edges count")
    result = _count(options)
    if options.json:
        print(json.dumps(result))
        return 0
    table = Table("weight of the edges", "nats a token, whole blocks masked")
    for scale, nats in result["by_scale"].items():
        table.add_row(scale, f"{nats:.3f}{' *' if float(scale) == result['scale'] else ''}")
    Console().print(table)
    print(
        f"{result['pairs']:,} different pairs in {result['tokens']:,} tokens; nats a pair: single tokens "
        f"{result['unigram']:.3f}, rank {options.rank} decomposed {result['decomposed']:.3f}, fitted "
        f"{result['fitted']:.3f}\nmodel in {options.out}"
    )
    return 0


def _count(options: _Count) -> dict[str, Any]:
    plain = open_model(options.model, "cpu", "float32")
    if plain.config.edge != "none":
        raise ConfigError(f"{options.model} has {plain.config.edge} edges already: name a model without them")
    if plain.tokenizer is None:
        raise ConfigError(f"{options.model} has no tokenizer.json: its text cannot be counted")
    if not plain.config.denoises_blocks:
        raise ConfigError(f"{options.model} has no blocks of tokens to join: name a bd3lm or dadlm model")
    if options.steps < 1 or options.bits not in (8, 32):
        raise ConfigError(
            f"steps must be at least 1 and bits 32 or 8, got steps {options.steps} and bits {options.bits}"
        )
    if Path(options.out).exists():
        raise ConfigError(f"{options.out} exists: choose another --out")
    model = with_edges(plain, options.rank)  # refuses what cannot be before anything is counted
    shards = prepare(options.text, plain.tokenizer, options.cache, text_field=options.text_field)
    rows = Rows.from_shards(shards, plain.config.context)
    if len(rows) < 2:
        raise ConfigError(f"{options.text} has {shards.tokens} tokens: give more, to count and to hold out")
    held_out = max(1, min(8, len(rows) // 10))
    pairs = count_pairs(rows.cut(0, len(rows) - held_out), plain.config.mask_id, options.tokens)
    start = decompose(pairs, options.rank, options.seed)
    factors = fit(pairs, start, options.steps, options.seed, quiet=options.json)
    set_edges(model, *factors)
    by_scale = choose_scale(model, rows.cut(len(rows) - held_out, len(rows)), _SCALES)
    save(model, options.out, bits=options.bits)
    nothing = torch.zeros(len(pairs.share), 1)
    return {
        "out": options.out,
        "tokens": int(pairs.count.sum()),
        "pairs": len(pairs.count),
        "unigram": pair_nll(pairs, nothing, nothing),
        "decomposed": pair_nll(pairs, *start),
        "fitted": pair_nll(pairs, *factors),
        "by_scale": {str(scale): nats for scale, nats in by_scale.items()},
        "scale": min(by_scale, key=lambda scale: by_scale[scale]),
    }

"""dadlm edges: give a trained model token edges that are counted from text, without training it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch import Tensor

from dadlm.cli.options import JsonOption, open_model, parse, subcommand
from dadlm.errors import ConfigError
from dadlm.model import Model, save
from dadlm.tokens import Rows, prepare
from dadlm.train.edges import (
    choose_scale,
    choose_second_scale,
    count_pairs,
    decompose,
    fit,
    pair_nll,
    set_edges,
    with_edges,
)

_USAGE = """usage: dadlm edges count TEXT --out FOLDER [options]

  count    count which tokens follow each other in a text, and save the model with edges fitted to that

dadlm edges count --help lists the options."""
_SCALES = (0.0, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1)
_SECOND_SCALES = (0.0, 0.4, 0.5, 0.6, 0.7, 0.8)


@dataclass(frozen=True)
class _Count(JsonOption):
    """Add token edges to a model without training it.
    Counts pairs of neighbouring tokens, and of tokens two
    positions apart, and fits low-rank edges to the counts.
    The weights of the edges are chosen by the likelihood of
    masked blocks at the end of the text, which is not counted."""

    text: tyro.conf.Positional[str]
    """A .txt, .jsonl, .jsonl.zst or .parquet file, a folder or pattern of these, or hf:NAME."""
    out: str
    """Folder for the model with edges."""
    model: str = "dadlm"
    """Name or folder of a bd3lm or dadlm model without edges, or
    with bilinear edges, to which second-order edges are added."""
    rank: int = 128
    """Rank of the edges, if the model has none; doubling it
    improves them a little and doubles their parameters."""
    second_rank: int = 128
    """Rank of the second-order edges, from the token two positions to the left; 0: none."""
    tokens: int = 20_000_000
    """Maximum number of tokens to count."""
    steps: int = 200
    """Steps of the fit."""
    seed: int = 0
    """Seed of the fit."""
    bits: int = 32
    """Bits per stored weight: 32, or 8 for a folder a quarter of the size."""
    text_field: str = "text"
    """Field of a record that holds the text."""
    cache: str = ".dadlm-cache"
    """Folder for tokenised shards."""


def run(words: list[str]) -> int:
    kind = subcommand(words, {"count": _Count}, _USAGE, "say what to do with edges")
    if kind is None:
        return 0
    options = parse(kind, words[1:], "edges count")
    result = _count(options)
    if options.json:
        print(json.dumps(result))
        return 0
    for name, found in result["orders"].items():
        _print(f"edges of {name} order, rank {found['rank']}", found)
    print(f"model in {options.out}")
    return 0


def _print(name: str, found: dict[str, Any]) -> None:
    table = Table(f"weight of {name}", "nats a token, whole blocks masked")
    for scale, nats in found["by_scale"].items():
        table.add_row(scale, f"{nats:.3f}{' *' if float(scale) == found['scale'] else ''}")
    Console().print(table)
    print(
        f"{found['pairs']:,} different pairs in {found['tokens']:,} tokens; nats a pair: single tokens "
        f"{found['unigram']:.3f}, decomposed {found['decomposed']:.3f}, fitted {found['fitted']:.3f}"
    )


def _count(options: _Count) -> dict[str, Any]:
    plain = open_model(options.model, "cpu", "float32")
    _check(options, plain)
    rank = options.rank if plain.config.edge == "none" else plain.config.edge_rank
    model = with_edges(plain, rank, options.second_rank)  # refuses what cannot be before anything is counted
    assert plain.tokenizer is not None
    shards = prepare(options.text, plain.tokenizer, options.cache, text_field=options.text_field)
    rows = Rows.from_shards(shards, plain.config.context)
    if len(rows) < 2:
        raise ConfigError(f"{options.text} has {shards.tokens} tokens: give more, to count and to hold out")
    held_out = max(1, min(8, len(rows) // 10))
    counted, rest = rows.cut(0, len(rows) - held_out), rows.cut(len(rows) - held_out, len(rows))
    orders = dict[str, dict[str, Any]]()
    if plain.config.edge == "none":
        orders["first"], factors = _fitted(options, counted, plain.config.mask_id, rank, apart=1)
        set_edges(model, *factors)
        orders["first"] |= _chosen(choose_scale(model, rest, _SCALES))
    if options.second_rank:
        orders["second"], factors = _fitted(
            options, counted, plain.config.mask_id, options.second_rank, apart=2
        )
        orders["second"] |= _chosen(choose_second_scale(model, rest, _SECOND_SCALES, factors))
    save(model, options.out, bits=options.bits)
    return {"out": options.out, "orders": orders}


def _check(options: _Count, plain: Model) -> None:
    edge, name = plain.config.edge, options.model
    if not plain.config.denoises_blocks:
        raise ConfigError(f"{name} has no blocks of tokens to join: name a bd3lm or dadlm model")
    if edge == "mlp" or plain.config.edge_second_rank:
        what = "mlp edges" if edge == "mlp" else "edges of second order"
        raise ConfigError(f"{name} has {what} already: name a model without them")
    if edge != "none" and not options.second_rank:
        raise ConfigError(f"{name} has edges already: name a model without them, or a second_rank to add")
    if plain.tokenizer is None:
        raise ConfigError(f"{name} has no tokenizer.json: its text cannot be counted")
    if options.steps < 1 or options.bits not in (8, 32):
        raise ConfigError(
            f"steps must be at least 1 and bits 32 or 8, got steps {options.steps} and bits {options.bits}"
        )
    if Path(options.out).exists():
        raise ConfigError(f"{options.out} exists: choose another --out")


def _fitted(
    options: _Count, rows: Rows, vocabulary: int, rank: int, apart: int
) -> tuple[dict[str, Any], tuple[Tensor, Tensor]]:
    """Factors of pairs that stand so far apart in a text, and what is to be said of them."""
    pairs = count_pairs(rows, vocabulary, options.tokens, apart)
    start = decompose(pairs, rank, options.seed)
    factors = fit(pairs, start, options.steps, options.seed, quiet=options.json)
    nothing = torch.zeros(len(pairs.share), 1)
    return {
        "rank": rank,
        "tokens": int(pairs.count.sum()),
        "pairs": len(pairs.count),
        "unigram": pair_nll(pairs, nothing, nothing),
        "decomposed": pair_nll(pairs, *start),
        "fitted": pair_nll(pairs, *factors),
    }, factors


def _chosen(by_scale: dict[float, float]) -> dict[str, Any]:
    return {
        "by_scale": {str(scale): nats for scale, nats in by_scale.items()},
        "scale": min(by_scale, key=lambda scale: by_scale[scale]),
    }

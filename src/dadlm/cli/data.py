"""dadlm data: text → token shards, a check of them, or a tokenizer."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from dadlm.cli.options import JsonOption, parse, subcommand, usage_of
from dadlm.errors import ConfigError
from dadlm.tokens import parse_mixture, prepare, verify
from dadlm.train import DataConfig
from dadlm.train.data import load_tokenizer


@dataclass(frozen=True)
class _Prepare(JsonOption):
    """turn text into token shards, which training finds in its cache (--data.cache)"""

    source: tyro.conf.Positional[str]
    """A .txt, .jsonl, .jsonl.zst or .parquet file, a folder or pattern of these, hf:NAME, or a mixture."""
    tokenizer: str = "gpt2"
    """gpt2, a folder, a Hugging Face name, or bpe:SIZE to train one on this text first."""
    out: str = ".dadlm-cache"
    """Folder for the shards."""
    text_field: str = "text"
    """Field of a record that holds the text."""
    workers: int = 1
    """Processes that tokenise; affects speed, not results."""


@dataclass(frozen=True)
class _Verify(JsonOption):
    """read folders of shards completely and compare them with their checksums"""

    folders: tyro.conf.Positional[tuple[str, ...]]
    """Folders written by `dadlm data prepare`."""


@dataclass(frozen=True)
class _TrainTokenizer(JsonOption):
    """train a byte-level BPE tokenizer on text"""

    source: tyro.conf.Positional[str]
    """Text to train on, in any form that `dadlm data prepare` accepts."""
    size: int = 8192
    """Number of ids, at least 257 (256 bytes and end-of-text)."""
    out: str = "tokenizer"
    """Folder for tokenizer.json."""
    text_field: str = "text"
    """Field of a record that holds the text."""


def run(words: list[str]) -> int:
    kinds = {"prepare": _Prepare, "verify": _Verify, "tokenizer": _TrainTokenizer}
    kind = subcommand(words, kinds, usage_of("data", kinds), "say what to do with the data")
    if kind is None:
        return 0
    options = parse(kind, words[1:], f"data {words[0]}")
    results = []
    for result in _results(options):
        results.append(result)
        if not options.json:
            print("  ".join(f"{key} {value}" for key, value in result.items()), flush=True)
    if options.json:
        print(json.dumps(results[0] if len(results) == 1 else {"sources": results}))
    return 0


def _results(options: _Prepare | _Verify | _TrainTokenizer) -> Iterator[dict[str, Any]]:
    """What was made: one of each source of a mixture, or folder."""
    if isinstance(options, _Verify):
        if not options.folders:
            raise ConfigError("no folder to verify: name some that `dadlm data prepare` has made")
        for folder in options.folders:
            shards = verify(folder)
            yield {"folder": folder, "shards": len(shards.arrays), "tokens": shards.tokens, "sound": True}
        return
    if isinstance(options, _TrainTokenizer) and (Path(options.out) / "config.json").exists():
        raise ConfigError(f"{options.out} holds a model, whose tokenizer must stay: choose another --out")
    name = options.tokenizer if isinstance(options, _Prepare) else f"bpe:{options.size}"
    field = options.text_field
    tokenizer = load_tokenizer(DataConfig(train=options.source, tokenizer=name, text_field=field))
    if isinstance(options, _TrainTokenizer):
        tokenizer.save(options.out)
        yield {"folder": options.out, "vocab_size": tokenizer.vocab_size}
        return
    for _, source in parse_mixture(options.source):
        shards = prepare(source, tokenizer, options.out, text_field=field, workers=options.workers)
        yield {"folder": str(shards.folder), "tokens": shards.tokens, "vocab_size": tokenizer.vocab_size}

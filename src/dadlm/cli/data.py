"""dadlm data: text → token shards, or a tokenizer."""

import json
from dataclasses import dataclass

import tyro

from dadlm.errors import ConfigError
from dadlm.tokens import prepare
from dadlm.train import DataConfig
from dadlm.train.data import load_tokenizer


@dataclass(frozen=True)
class _Prepare:
    source: tyro.conf.Positional[str]
    """A .txt, .jsonl, .jsonl.zst or .parquet file, a folder or pattern of these, or hf:NAME."""
    tokenizer: str = "gpt2"
    """gpt2, a folder, a Hugging Face name, or bpe:SIZE to train one on this text first."""
    out: str = ".dadlm-cache"
    """Folder for the shards."""
    text_field: str = "text"
    """Field that holds the text in records."""
    json: bool = False
    """Print one JSON object."""


@dataclass(frozen=True)
class _TrainTokenizer:
    source: tyro.conf.Positional[str]
    """Text to learn from."""
    size: int = 8192
    """Number of ids."""
    out: str = "tokenizer"
    """Folder for tokenizer.json."""
    text_field: str = "text"
    """Field that holds the text in records."""
    json: bool = False
    """Print one JSON object."""


def run(words: list[str]) -> int:
    kinds = {"prepare": _Prepare, "tokenizer": _TrainTokenizer}
    if not words or words[0] not in kinds:
        text = "usage: dadlm data prepare SOURCE [options]\n       dadlm data tokenizer SOURCE [options]"
        if words and words[0] in ("-h", "--help"):
            print(text)
            return 0
        raise ConfigError("say what to do with the data\n" + text)
    config = (tyro.conf.FlagCreatePairsOff,)
    options = tyro.cli(kinds[words[0]], args=words[1:], prog=f"dadlm data {words[0]}", config=config)
    name = options.tokenizer if isinstance(options, _Prepare) else f"bpe:{options.size}"
    tokenizer = load_tokenizer(
        DataConfig(train=options.source, tokenizer=name, text_field=options.text_field)
    )
    if isinstance(options, _TrainTokenizer):
        tokenizer.save(options.out)
        result = {"folder": options.out, "vocab_size": tokenizer.vocab_size}
    else:
        shards = prepare(options.source, tokenizer, options.out, text_field=options.text_field)
        result = {"folder": str(shards.folder), "tokens": shards.tokens, "vocab_size": tokenizer.vocab_size}
    print(
        json.dumps(result) if options.json else "  ".join(f"{key} {value}" for key, value in result.items())
    )
    return 0

"""From a data configuration to tokenizer and rows."""

from dadlm.errors import ConfigError, DataError
from dadlm.tokens import Rows, Tokenizer, prepare, read_pieces, train_bpe
from dadlm.train.config import DataConfig


def load_tokenizer(data: DataConfig) -> Tokenizer:
    """Train, build or load the tokenizer that the configuration names."""
    if not data.tokenizer.startswith("bpe:"):
        return Tokenizer.load(data.tokenizer)
    size = data.tokenizer.removeprefix("bpe:")
    if not size.isdecimal() or int(size) < 257:
        raise ConfigError(
            f"tokenizer bpe:SIZE needs a size of at least 257 (256 bytes and end-of-text), got {size!r}"
        )
    pieces = read_pieces(_source(data), text_field=data.text_field)  # cut between words: constant memory
    return train_bpe((piece.text for piece in pieces), int(size), show_progress=False)


def load_rows(data: DataConfig, tokenizer: Tokenizer, context: int) -> tuple[Rows, Rows]:
    """Training and validation rows; without validation text, the end of the training text is held out."""
    train = Rows.from_shards(
        prepare(_source(data), tokenizer, data.cache, text_field=data.text_field), context
    )
    if data.valid is not None:
        valid = prepare(data.valid, tokenizer, data.cache, text_field=data.text_field, split="validation")
        return train, Rows.from_shards(valid, context)
    held_out = max(1, round(len(train) * data.valid_share))
    if len(train) < 2:
        raise DataError(
            f"the text gives a single row of {context} tokens: nothing is left to hold out for validation; "
            "give more text, a shorter context, or validation text"
        )
    if held_out == len(train):
        raise ConfigError(f"valid_share {data.valid_share} holds out all {len(train)} rows; lower it")
    return train.cut(0, len(train) - held_out), train.cut(len(train) - held_out, len(train))


def _source(data: DataConfig) -> str:
    if not data.train:
        raise ConfigError(
            "no training text: pass --data.train FILE (.txt, .jsonl, .jsonl.zst, .parquet, or hf:NAME)"
        )
    return data.train

"""Text to ids to shards to batches: the first stage of the way of the data."""

from dadlm.tokens.mixture import Mixture, parse_mixture, training_rows
from dadlm.tokens.packing import prepare
from dadlm.tokens.pieces import Piece
from dadlm.tokens.readers import field_of
from dadlm.tokens.rows import DocumentRows, Rows
from dadlm.tokens.shards import Index, Shards, verify
from dadlm.tokens.sources import describe, read_pieces, read_texts
from dadlm.tokens.tokenizer import EOT, Tokenizer
from dadlm.tokens.vocabularies import gpt2, train_bpe, word_level

__all__ = [
    "EOT",
    "DocumentRows",
    "Index",
    "Mixture",
    "Piece",
    "Rows",
    "Shards",
    "Tokenizer",
    "describe",
    "field_of",
    "gpt2",
    "parse_mixture",
    "prepare",
    "read_pieces",
    "read_texts",
    "train_bpe",
    "training_rows",
    "verify",
    "word_level",
]

"""Rows of a .parquet file as documents, a few rows in memory at a time."""

from collections.abc import Iterator
from pathlib import Path

from dadlm.errors import DataError
from dadlm.tokens.pieces import Piece, whole
from dadlm.tokens.records import field_of

_ROWS = 64  # held in memory at once


def read_parquet(path: Path, text_field: str) -> Iterator[Piece]:
    """The texts of one column in order; `read` goes with the share of rows, as bytes mean little here."""
    size, rows = path.stat().st_size, 0
    try:
        for row, rows, value in _values(path, text_field):
            document = field_of({text_field: value}, text_field, f"{path}, row {row}")
            for text, ends in whole(document) if document else ():
                yield Piece(text, ends, size * row // rows)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8: column {text_field!r} holds other bytes ({error})") from error


def _values(path: Path, text_field: str) -> Iterator[tuple[int, int, object]]:
    """(row number from 1, number of rows, value)."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(f"{path}: reading parquet needs pyarrow: pip install 'dadlm[train]'") from error
    try:
        with parquet.ParquetFile(path) as file:
            if text_field not in (names := file.schema_arrow.names):
                field_of(dict.fromkeys(names), text_field, str(path))
            row = 0
            for batch in file.iter_batches(_ROWS, columns=[text_field]):
                for value in batch.column(0):
                    row += 1
                    yield row, file.metadata.num_rows, value.as_py()
    except pyarrow.ArrowException as error:
        raise DataError(f"{path} is not a readable parquet file: {error}") from error

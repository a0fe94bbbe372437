"""One file to documents: .txt and .jsonl, plain or packed with gzip or zstd, and .parquet.

Every error names the file and the place in it. Texts come out exactly as they are, but for a byte-order
mark at the start of a file. Knows nothing of tokens, nor which files there are (`sources.py`).
"""

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from dadlm.errors import DataError
from dadlm.tokens.pieces import Piece, marked, split_text
from dadlm.tokens.zstd import ZstdReader

PACKINGS = (".gz", ".zst")
_CHUNK = 1 << 18
_ROWS = 64  # of a parquet file, in memory at once


def file_format(path: Path) -> tuple[str, str]:
    """(format, packing) by the file's name, e.g. (".jsonl", ".zst"); ("", "") when it is none we know."""
    endings = [ending.lower() for ending in path.suffixes[-2:]]
    packing = endings.pop() if endings and endings[-1] in PACKINGS else ""
    form = endings[-1] if endings else ""
    known = form in (".txt", ".jsonl") or (form == ".parquet" and not packing)  # parquet packs by itself
    return (form, packing) if known else ("", "")


def read_file(path: Path, text_field: str) -> Iterator[Piece]:
    """The file's documents in order, in pieces; empty documents are left out."""
    form, packing = file_format(path)
    try:
        if form == ".parquet":
            yield from _parquet(path, text_field)
            return
        with path.open("rb") as raw:
            stream = _unpack(raw, packing)
            stretches = _txt(stream, path) if form == ".txt" else _jsonl(stream, path, text_field)
            for text, ends in stretches:
                yield Piece(text, ends, raw.tell())
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged or cut short: {error}; fetch it again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def _unpack(raw: BinaryIO, packing: str) -> BinaryIO:
    if packing == ".gz":
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    return cast(BinaryIO, io.BufferedReader(ZstdReader(raw), _CHUNK)) if packing == ".zst" else raw


def _txt(stream: BinaryIO, path: Path) -> Iterator[tuple[str, bool]]:
    """The whole file as one document, never all of it in memory."""
    rest = ""
    for text in _decoded(stream, path):
        *ready, rest = split_text(rest + text)
        for stretch in ready:
            yield stretch, False
    if rest:
        yield rest, True


def _decoded(stream: BinaryIO, path: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset, line, chunk = 0, 1, b"-"  # offset and line of the first byte that is not decoded yet
    while chunk:
        chunk = stream.read(_CHUNK)
        data = decoder.getstate()[0] + chunk
        decoder.reset()
        try:
            text = decoder.decode(data, final=not chunk)
        except UnicodeDecodeError as error:
            line += data.count(b"\n", 0, error.start)
            raise _not_utf8(path, line, offset + error.start, data, error) from error
        yield text.removeprefix("\ufeff") if offset == 0 else text
        offset += len(data) - len(decoder.getstate()[0])
        line += data.count(b"\n")  # what is left undecoded is the beginning of a character, not a newline


def _jsonl(stream: BinaryIO, path: Path, text_field: str) -> Iterator[tuple[str, bool]]:
    """One JSON object a line; blank lines are passed over."""
    offset = 0
    for number, line in enumerate(cast(Iterable[bytes], stream), 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise _not_utf8(path, number, offset + error.start, line, error) from error
        offset += len(line)
        if text.strip():
            yield from marked(field_of(_record(text, path, number), text_field, f"{path}, line {number}"))


def _record(line: str, path: Path, number: int) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        start = line.strip()[:40]
        raise DataError(f"{path}, line {number}: not valid JSON ({error}); it begins {start!r}") from error


def _not_utf8(path: Path, line: int, offset: int, data: bytes, error: UnicodeDecodeError) -> DataError:
    unpacked = " of the unpacked text" if path.suffix in PACKINGS else ""
    return DataError(
        f"{path} is not UTF-8: line {line}, byte offset {offset}{unpacked} (byte 0x{data[error.start]:02X}, "
        f"{error.reason}). Convert it, e.g. iconv -f latin1 -t utf-8"
    )


def _parquet(path: Path, text_field: str) -> Iterator[Piece]:
    """The texts of one column in order; `read` goes with the share of rows, as bytes mean little here."""
    size, rows = path.stat().st_size, 0
    try:
        for row, rows, value in _column(path, text_field):
            document = field_of({text_field: value}, text_field, f"{path}, row {row}")
            for text, ends in marked(document):
                yield Piece(text, ends, size * row // rows)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8: column {text_field!r} holds other bytes ({error})") from error


def _column(path: Path, text_field: str) -> Iterator[tuple[int, int, object]]:
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


def field_of(record: object, text_field: str, where: str) -> str:
    """The text of one record, or an error saying where, and which fields there are."""
    if not isinstance(record, dict):
        found = type(record).__name__
        raise DataError(f'{where}: expected an object like {{"{text_field}": "..."}}, found {found}')
    if text_field not in record:
        names = ", ".join(map(str, record)) or "none"
        raise DataError(
            f"{where}: no field {text_field!r}; its fields are: {names}. Choose one as text field"
        )
    text = record[text_field]
    if not isinstance(text, str):
        raise DataError(f"{where}: field {text_field!r} holds {type(text).__name__}, expected text")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:  # JSON can spell half of a surrogate pair
            half = ascii(text[error.start])
            reason = f"field {text_field!r} holds half a character ({half}), not valid Unicode"
            raise DataError(f"{where}: {reason}") from error
    return text

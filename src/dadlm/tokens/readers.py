"""One file to documents: .txt and .jsonl, plain or compressed with gzip or zstd, and .parquet.

Texts come out exactly as they are, except for a byte-order mark at the start of a file.
"""

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from dadlm.errors import DataError
from dadlm.tokens.pieces import Piece, marked, split_text
from dadlm.tokens.zstd import ZstdReader

PACKINGS = (".gz", ".zst")
LONGEST = 64 << 20
"""Bytes of a line of .jsonl or a text of .parquet: few bytes of a compressed file can stand for any number,
and memory takes several times as many."""
_CHUNK = 1 << 18
_ROWS = 16  # of a parquet file, in memory at once
_STREAMS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")


def file_format(path: Path) -> tuple[str, str]:
    """(format, compression) by the file's name, e.g. (".jsonl", ".zst"); ("", "") if it is none we know."""
    endings = [ending.lower() for ending in path.suffixes[-2:]]
    packing = endings.pop() if endings and endings[-1] in PACKINGS else ""
    form = endings[-1] if endings else ""
    known = form in (".txt", ".jsonl") or (form == ".parquet" and not packing)  # parquet compresses by itself
    return (form, packing) if known else ("", "")


def check_regular(path: Path) -> None:
    """Refuse pipes and devices, which would block; standard input may be read by its name."""
    if path.exists() and not path.is_file() and not str(path.absolute()).startswith(_STREAMS):
        raise DataError(f"{path} is no regular file")


def read_file(path: Path, text_field: str) -> Iterator[Piece]:
    """The file's documents in order, in pieces, without empty ones."""
    form, packing = file_format(path)
    try:
        if form == ".parquet":
            yield from _parquet(path, text_field)
            return
        with path.open("rb") as raw:
            stream: BinaryIO = raw
            if packing == ".gz":
                stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw))
            elif packing == ".zst":
                stream = cast(BinaryIO, io.BufferedReader(ZstdReader(raw), _CHUNK))
            stretches = _txt(stream, path) if form == ".txt" else _jsonl(stream, path, text_field)
            for text, ends in stretches:
                yield Piece(text, ends, raw.tell())
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged or cut short: {error}; fetch it again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


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
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    offset, line, chunk = 0, 1, b"-"
    while chunk:
        chunk = stream.read(_CHUNK)
        offset += len(chunk)
        try:
            yield decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            raise _not_utf8(path, line, offset, error) from error
        line += chunk.count(b"\n")


def _jsonl(stream: BinaryIO, path: Path, text_field: str) -> Iterator[tuple[str, bool]]:
    """One JSON object a line; blank lines are skipped."""
    offset = 0
    for number, line in enumerate(iter(partial(stream.readline, LONGEST + 1), b""), 1):
        if len(line) > LONGEST:
            raise _too_long(f"{path}, line {number}")
        offset += len(line)
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise _not_utf8(path, number, offset, error) from error
        if not text.strip():
            continue
        where = f"{path}, line {number}"
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            start = text.strip()[:40]
            raise DataError(f"{where}: not valid JSON ({error}); it begins {start!r}") from error
        yield from marked(field_of(record, text_field, where))


def _too_long(where: str) -> DataError:
    return DataError(
        f"{where}: longer than {LONGEST >> 20} MiB; split it into several documents, or make it a .txt file"
    )


def _not_utf8(path: Path, line: int, read: int, error: UnicodeDecodeError) -> DataError:
    """The bytes in `error` begin in that line, and end at byte number `read` of the file."""
    data, start = error.object, error.start
    line += data.count(b"\n", 0, start)
    where = f"line {line}, byte offset {read - len(data) + start}"
    unpacked = " of the unpacked text" if path.suffix in PACKINGS else ""
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and read == len(data)
    encoding = (
        "utf-16" if wide else "windows-1252"
    )  # the common ones; Latin-1 is all but a part of the latter
    return DataError(
        f"{path} is not UTF-8: {where}{unpacked} (byte 0x{data[start]:02X}, {error.reason}). "
        f"Convert it, e.g. iconv -f {encoding} -t utf-8"
    )


def _parquet(path: Path, text_field: str) -> Iterator[Piece]:
    """The texts of one column in order; `read` follows the share of rows, as bytes mean little here."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(f"{path}: reading parquet needs pyarrow: pip install 'dadlm[train]'") from error
    size, row = path.stat().st_size, 0
    try:
        with parquet.ParquetFile(path) as file:
            if text_field not in (names := file.schema_arrow.names):
                field_of(dict.fromkeys(names), text_field, str(path))
            _check_sizes(file.metadata, path, text_field)
            for batch in file.iter_batches(_ROWS, columns=[text_field]):
                for value in batch.column(0):
                    row += 1
                    stored = getattr(value, "as_buffer", lambda: None)()  # None where the text is null
                    if stored is not None and stored.size > LONGEST:
                        raise _too_long(f"{path}, row {row}")
                    document = field_of({text_field: value.as_py()}, text_field, f"{path}, row {row}")
                    for text, ends in marked(document):
                        yield Piece(text, ends, size * row // file.metadata.num_rows)
    except pyarrow.ArrowException as error:
        raise DataError(f"{path} is not a readable parquet file: {error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8: column {text_field!r} holds other bytes ({error})") from error


def _check_sizes(metadata: Any, path: Path, text_field: str) -> None:
    """Refuse texts that are too long on average, before anything is decompressed."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = map(group.column, range(group.num_columns))
        size = sum(one.total_uncompressed_size for one in columns if one.path_in_schema == text_field)
        if size > LONGEST * (group.num_rows + 1):
            raise _too_long(f"{path}, row group {number + 1}")


def field_of(record: object, text_field: str, where: str) -> str:
    """The text of one record, or an error that says where it is missing, and which fields there are."""
    if not isinstance(record, dict):
        found = type(record).__name__
        raise DataError(f'{where}: expected an object like {{"{text_field}": "..."}}, found {found}')
    if text_field not in record:
        names = f"its fields are: {', '.join(map(str, record)) or 'none'}. Choose one as text field"
        raise DataError(f"{where}: no field {text_field!r}; {names}")
    text = record[text_field]
    if not isinstance(text, str):
        raise DataError(f"{where}: field {text_field!r} holds {type(text).__name__}, expected text")
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as error:  # JSON can spell half of a surrogate pair
        reason = f"holds half a character ({text[error.start]!a}), not valid Unicode"
        raise DataError(f"{where}: field {text_field!r} {reason}") from error
    return text

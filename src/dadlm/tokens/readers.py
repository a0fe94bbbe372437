"""One file to documents: .txt and .jsonl, plain or packed with gzip or zstd, and .parquet.

Every complaint names the file and the place in it. Texts come out exactly as they are, but for a byte-order
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
from dadlm.tokens.parquet import read_parquet
from dadlm.tokens.pieces import Piece, cut, whole
from dadlm.tokens.records import field_of
from dadlm.tokens.zstd import ZstdReader

PACKINGS = (".gz", ".zst")
_CHUNK = 1 << 18


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
            yield from read_parquet(path, text_field)
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
        *ready, rest = cut(rest + text)
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
            document = field_of(_record(text, path, number), text_field, f"{path}, line {number}")
            if document:
                yield from whole(document)


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

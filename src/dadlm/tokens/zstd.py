"""Unpacking of zstd files as a stream of bounded memory that tells the truth about their end.

The zstandard package's reader takes a file that was cut short for one that ends there; its other interface
gives out at once whatever the bytes put in unpack to, which may be thousands of times as much. So the blocks
of a file (RFC 8878, section 3.1) are found here and unpacked one at a time, each to at most 128 KiB.
"""

import io
from collections.abc import Iterator
from typing import Any, BinaryIO

from dadlm.errors import DataError

_MAGIC, _SKIPPABLE = 0xFD2FB528, 0x184D2A50
_WINDOW = 1 << 31  # the most that zstd itself can pack with (--long=31); the package's own limit is lower


class ZstdReader(io.RawIOBase):
    """The unpacked bytes of all frames of `raw`; `EOFError` when the file is damaged or not complete."""

    def __init__(self, raw: BinaryIO):
        self._blocks, self._ready = _unpacked(raw), memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._ready = memoryview(block)
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


def _unpacked(raw: BinaryIO) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError as error:
        raise DataError("reading .zst files needs zstandard: pip install 'dadlm[train]'") from error
    unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
    while magic := raw.read(4):
        number = int.from_bytes(magic, "little")
        if number & ~0xF == _SKIPPABLE:  # a note of whoever packed the file, not content
            raw.seek(_integer(raw, 4), io.SEEK_CUR)
            continue
        if number != _MAGIC:
            raise EOFError("these are not the bytes of a zstd frame")
        frame = unpacker.decompressobj()
        try:
            frame.decompress(magic)
            for part in _parts(raw):
                yield frame.decompress(part)
        except zstandard.ZstdError as error:
            raise EOFError(str(error)) from error


def _parts(raw: BinaryIO) -> Iterator[bytes]:
    """The rest of a frame after its magic number: header, blocks, checksum."""
    flags = _exactly(raw, 1)
    single, checksum = flags[0] >> 5 & 1, flags[0] >> 2 & 1
    window, dictionary, content_size = (
        1 - single,
        (0, 1, 2, 4)[flags[0] & 3],
        (single, 2, 4, 8)[flags[0] >> 6],
    )
    yield flags + _exactly(raw, window + dictionary + content_size)
    last = False
    while not last:
        header = _exactly(raw, 3)
        number = int.from_bytes(header, "little")
        last, repeated, size = bool(number & 1), number >> 1 & 3 == 1, number >> 3
        yield header + _exactly(raw, 1 if repeated else size)
    if checksum:
        yield _exactly(raw, 4)


def _integer(raw: BinaryIO, size: int) -> int:
    return int.from_bytes(_exactly(raw, size), "little")


def _exactly(raw: BinaryIO, size: int) -> bytes:
    if len(data := raw.read(size)) < size:
        raise EOFError("the last zstd frame is not complete")
    return data

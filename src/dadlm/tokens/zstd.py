"""Decompress zstd files as a stream, in bounded memory.

`zstandard.stream_reader` takes a truncated file for a complete one; `decompressobj` knows where a frame ends.
"""

import io
from collections.abc import Iterator
from typing import Any, BinaryIO

from dadlm.errors import DataError

_WINDOW = 1 << 31  # the largest that zstd can compress with (--long=31); the package's default is lower
_INPUT = 128  # bytes decompressed at once: 4 bytes may stand for 128 KiB, so at most 4 MiB come out


class ZstdReader(io.RawIOBase):
    """The decompressed bytes of all frames of `raw`; `EOFError` if the file is damaged or incomplete."""

    def __init__(self, raw: BinaryIO):
        self._parts, self._ready = _unpacked(raw), memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            part = next(self._parts, None)
            if part is None:
                return 0
            self._ready = memoryview(part)
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


def _unpacked(raw: BinaryIO) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError as error:
        raise DataError("reading .zst files needs zstandard: pip install 'dadlm[train]'") from error
    unpacker, frame, data = zstandard.ZstdDecompressor(max_window_size=_WINDOW), None, b""
    while data or (data := raw.read(_INPUT)):
        frame = frame or unpacker.decompressobj()
        try:
            yield frame.decompress(data)
        except zstandard.ZstdError as error:
            raise EOFError(str(error)) from error
        data = frame.unused_data if frame.eof else b""
        frame = None if frame.eof else frame
    if frame is not None:
        raise EOFError("the last zstd frame is not complete")

"""Our walk through zstd's blocks against what the packer was given, whole and cut short."""

import io
from itertools import product

import pytest
import zstandard

from dadlm.tokens.zstd import ZstdReader

NOTE = (0x184D2A53).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"notes"  # a skippable frame
FLAGS = list(product([False, True], repeat=2))
CONTENTS = [b"", b"x", bytes(range(256)) * 3, b"a" * 400_000, b"several blocks of text " * 20_000]


def pack(content: bytes, checksum: bool, size_known: bool) -> bytes:
    packer = zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=size_known)
    if size_known:
        return packer.compress(content)
    stream = packer.compressobj()
    return stream.compress(content) + stream.flush()


def unpack(packed: bytes) -> bytes:
    return io.BufferedReader(ZstdReader(io.BytesIO(packed))).read()


@pytest.mark.parametrize(("checksum", "size_known"), FLAGS)
def test_all_frames_are_read(checksum, size_known):
    frames = [pack(content, checksum, size_known) for content in CONTENTS]
    assert [unpack(frame) for frame in frames] == CONTENTS
    assert unpack(NOTE.join(frames) + NOTE) == b"".join(CONTENTS)


@pytest.mark.parametrize(("checksum", "size_known"), FLAGS)
def test_every_cut_is_noticed(checksum, size_known):
    whole, last = (pack(content, checksum, size_known) for content in (b"whole", b"last " * 50))
    assert unpack(whole + last) == b"whole" + b"last " * 50
    for length in range(1, len(last)):
        with pytest.raises(EOFError):
            unpack(whole + last[:length])


def test_changed_bytes_are_noticed():
    packed = bytearray(pack(b"some text", checksum=True, size_known=True))
    packed[-6] ^= 1
    with pytest.raises(EOFError, match=r"(?i)checksum"):
        unpack(bytes(packed))

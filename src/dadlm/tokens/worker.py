"""A process that tokenises: texts come in on standard input, ids go out on standard output.

Run as a file, not as a module of the package: a worker then holds the tokenizer and little else in memory,
not torch. It ends when its input does, so none outlives a run that was killed. The two functions that both
ends of the pipe need are here too.
"""

import signal
import struct
import sys
from array import array
from collections.abc import Sequence
from typing import IO

import tokenizers


def send(stream: IO[bytes], parts: Sequence[bytes]) -> None:
    """Write the number of parts, their sizes, and the parts."""
    stream.write(struct.pack(f"<{1 + len(parts)}I", len(parts), *map(len, parts)))
    stream.writelines(parts)
    stream.flush()


def receive(stream: IO[bytes]) -> list[bytes] | None:
    """What the other end sent; None when it is gone."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    (count,) = struct.unpack("<I", head)
    sizes = stream.read(4 * count)
    if len(sizes) < 4 * count:
        return None
    parts = [stream.read(size) for size in struct.unpack(f"<{count}I", sizes)]
    return parts if sum(map(len, parts)) == sum(struct.unpack(f"<{count}I", sizes)) else None


def main(file: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started us decides when to stop
    tokenizer = tokenizers.Tokenizer.from_file(file)
    tokenizer.encode_special_tokens = True  # as `Tokenizer` does; no file says it
    while texts := receive(sys.stdin.buffer):
        try:
            encodings = tokenizer.encode_batch_fast(
                [text.decode() for text in texts], add_special_tokens=False
            )
            ids = [array("I", encoding.ids).tobytes() for encoding in encodings]
        except Exception:  # the library raises bare Exception; no answer makes the other end find out why
            ids = []
        send(sys.stdout.buffer, ids)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except BrokenPipeError:  # nobody waits for the answer any more
        sys.stderr.close()

"""A process that tokenises: reads lists of texts from standard input, writes their ids to standard output.

Run as a file, not as a module of the package, so that torch is not loaded. It ends when its input does, so
none outlives a run that is killed.
"""

import json
import signal
import sys
from typing import IO, Any

import tokenizers


def send(stream: IO[bytes], value: Any) -> None:
    stream.write(json.dumps(value).encode() + b"\n")
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """A line from the other end; EOFError if it is gone."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    return json.loads(line)


def main(file: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started us decides when to stop
    tokenizer = tokenizers.Tokenizer.from_file(file)
    tokenizer.encode_special_tokens = True  # as `Tokenizer` does: the file does not store it
    while True:
        texts = receive(sys.stdin.buffer)
        try:
            encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            ids = [encoding.ids for encoding in encodings]
        except BaseException:  # the library also panics; the caller encodes again to find out why
            ids = None
        send(sys.stdout.buffer, ids)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except (EOFError, BrokenPipeError):  # the other end is gone
        sys.stderr.close()

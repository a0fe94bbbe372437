"""Pieces of text to ids, here or in several processes, always in the order they came.

At most one batch for each process is in memory; the result does not depend on how many there are.
"""

import os
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from typing import IO

from dadlm.errors import DataError
from dadlm.tokens import worker
from dadlm.tokens.pieces import Piece
from dadlm.tokens.tokenizer import Tokenizer

Encoded = Generator[tuple[list[Piece], Sequence[Sequence[int]]]]


def encode_batches(batches: Iterable[list[Piece]], tokenizer: Tokenizer, file: Path, workers: int) -> Encoded:
    """Each batch with the ids of its pieces; `file` is the tokenizer's own."""
    if workers == 1:  # here: the library spreads a batch over the cores by itself
        for batch in batches:
            yield batch, tokenizer.encode_batch([piece.text for piece in batch])
        return

    def result(batch: list[Piece], process: subprocess.Popen) -> tuple[list[Piece], Sequence[Sequence[int]]]:
        with _pipes(process) as (_, stdout):
            ids = worker.receive(stdout)
        if ids is None:  # to fail as it did there, and say why
            ids = tokenizer.encode_batch([piece.text for piece in batch])
        return batch, ids

    with ExitStack() as stack:
        processes = [_start(file, stack) for _ in range(workers)]
        working: deque[tuple[list[Piece], subprocess.Popen]] = deque()
        for batch, process in zip(batches, cycle(processes), strict=False):
            done = [result(*working.popleft())] if len(working) == workers else []
            with _pipes(process) as (stdin, _):
                worker.send(stdin, [piece.text for piece in batch])
            working.append((batch, process))
            yield from done
        for batch, process in working:
            yield result(batch, process)


def _start(file: Path, stack: ExitStack) -> subprocess.Popen:
    """A process that tokenises; killed when the stack is left."""
    process = subprocess.Popen(
        [sys.executable, "-P", worker.__file__, str(file)],  # -P: our files' names must not hide others
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"TOKENIZERS_PARALLELISM": "false"},  # one core each
    )
    stack.callback(process.communicate)
    stack.callback(process.kill)  # first
    return process


@contextmanager
def _pipes(process: subprocess.Popen) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    assert process.stdin is not None and process.stdout is not None
    try:
        yield process.stdin, process.stdout
    except (BrokenPipeError, EOFError):
        raise DataError(
            f"a process that tokenises has died (exit code {process.wait()}); with little memory, take "
            "fewer workers. Finished shards are kept: run again to resume"
        ) from None

"""Pieces of text → ids, in this process or in several, always in order.

At most two batches per process are in memory; the result does not depend on the number of processes.
"""

import os
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from dadlm.errors import DataError
from dadlm.tokens import worker
from dadlm.tokens.pieces import Piece
from dadlm.tokens.tokenizer import Tokenizer

Ids = Sequence[Sequence[int]]
Encoded = Generator[tuple[list[Piece], Ids]]


def encode_batches(batches: Iterable[list[Piece]], tokenizer: Tokenizer, file: Path, workers: int) -> Encoded:
    """Each batch with the ids of its pieces; `file` is where the tokenizer is saved."""
    if workers == 1:  # here: the library spreads a batch over the cores by itself
        for batch in batches:
            yield batch, tokenizer.encode_batch([piece.text for piece in batch])
        return
    with ExitStack() as stack:
        idle: SimpleQueue[subprocess.Popen] = SimpleQueue()
        for _ in range(workers):
            idle.put(_start(file, stack))

        def encode(batch: list[Piece]) -> Ids:
            process, texts = idle.get(), [piece.text for piece in batch]  # as many threads as processes
            try:
                ids = _exchange(process, texts)
            finally:
                idle.put(process)
            # What failed there is encoded again here, to say why.
            return tokenizer.encode_batch(texts) if ids is None else ids

        threads = stack.enter_context(ThreadPoolExecutor(workers))  # left first, while processes still answer
        waiting: deque = deque()
        for batch in batches:
            waiting.append((batch, threads.submit(encode, batch)))
            if len(waiting) == 2 * workers:
                first, ids = waiting.popleft()
                yield first, ids.result()
        for batch, ids in waiting:
            yield batch, ids.result()


def _start(file: Path, stack: ExitStack) -> subprocess.Popen:
    """A process that tokenises, killed when the stack is left."""
    process = subprocess.Popen(
        [sys.executable, "-P", worker.__file__, str(file)],  # -P: our modules must not shadow others
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"TOKENIZERS_PARALLELISM": "false"},  # one core each
    )
    stack.callback(process.communicate)
    stack.callback(process.kill)  # first
    return process


def _exchange(process: subprocess.Popen, texts: list[str]) -> Ids | None:
    assert process.stdin is not None and process.stdout is not None
    try:
        worker.send(process.stdin, texts)
        return worker.receive(process.stdout)
    except (BrokenPipeError, EOFError):
        raise DataError(
            f"a process that tokenises has died (exit code {process.wait()}); with little memory, take "
            "fewer workers. Finished shards are kept: run again to resume"
        ) from None

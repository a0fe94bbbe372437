"""One evaluation in its folder: finished pieces are kept as they come, the result is written last.

A piece has a key (a row, a sample, a question to a judge) and any JSON value. Pieces are appended to
`KIND.pieces.jsonl`, whose first line is the subject: what the evaluation is about. Started again with the
same subject, only the missing pieces are computed; a folder of another subject, or in use by another process,
is refused.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dadlm.errors import ConfigError, DataError
from dadlm.model.files import lock, whole_file


class Work:
    """Pieces of one evaluation; without a folder they live in memory only."""

    def __init__(
        self, kind: str, subject: Mapping[str, Any], out: str | Path | None = None, quiet: bool = True
    ) -> None:
        """`subject` holds everything that determines the result, and nothing that affects speed alone."""
        self.kind, self.quiet = kind, quiet
        self.subject: dict[str, Any] = json.loads(json.dumps(subject))  # as it will be read back
        self.pieces: dict[str, Any] = {}
        self._folder = None if out is None else Path(out)
        self._file: BinaryIO | None = None
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = _open(self._folder / f"{kind}.pieces.jsonl", self.subject, self.pieces)

    def __enter__(self) -> "Work":
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()

    def batches(self, keys: Sequence[str], size: int, what: str) -> Iterator[list[str]]:
        """The keys that are missing, `size` at a time, under a progress bar."""
        if size < 1:
            raise ConfigError(f"batch_size must be at least 1, got {size}")
        missing = [key for key in keys if key not in self.pieces]
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), disable=self.quiet) as bar:
            task = bar.add_task(what, total=len(keys), completed=len(keys) - len(missing))
            for first in range(0, len(missing), size):
                batch = missing[first : first + size]
                yield batch
                bar.advance(task, len(batch))

    def add(self, pieces: Iterable[tuple[str, Any]]) -> None:
        """Keep finished pieces; they are on the disk when this returns."""
        new, lines = dict(pieces), []
        for key, value in new.items():
            try:
                lines.append(_line([key, value]))
            except ValueError as error:
                raise DataError(
                    f"{self.kind}, piece {key!r} is infinite or not a number ({error}) and was not kept: "
                    "check the model's weights"
                ) from None
        self.pieces |= new
        if self._file is not None:
            self._file.writelines(lines)
            self._file.flush()
            os.fsync(self._file.fileno())

    def values(self, keys: Iterable[str]) -> list[Any]:
        return [self.pieces[key] for key in keys]

    def finish(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Write and return the result: the kind, the subject, then what was measured."""
        whole = {"kind": self.kind, **self.subject, **result}
        if self._folder is not None:
            write_result(self._folder / f"{self.kind}.json", whole)
        return whole


def write_result(file: Path, result: Mapping[str, Any]) -> None:
    with whole_file(file) as handle:
        handle.write((json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def _line(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _open(file: Path, subject: dict[str, Any], pieces: dict[str, Any]) -> BinaryIO:
    """Read the pieces of an earlier run, drop a line that it left unfinished, append from there."""
    with ExitStack() as stack:
        handle = stack.enter_context(open(file, "a+b"))
        if not lock(handle.fileno()):
            raise DataError(
                f"another process is at work on {file}: wait until it ends, or choose another --out"
            )
        good = _read(handle, file, subject, pieces)
        handle.truncate(good)
        if good == 0:
            handle.write(_line(subject))
            handle.flush()
        stack.pop_all()  # the caller closes it
    return handle


def _read(handle: BinaryIO, file: Path, subject: dict[str, Any], pieces: dict[str, Any]) -> int:
    """Fill in the pieces; returns how many bytes of the file are whole lines."""
    handle.seek(0)
    good = 0
    for number, line in enumerate(handle, 1):
        if not line.endswith(b"\n"):
            break
        try:
            value = json.loads(line)
            if number > 1:
                key, pieces[key] = value
        except (ValueError, TypeError) as error:
            raise DataError(
                f"{file}, line {number}: not a finished piece ({error}); remove the file to start over"
            ) from None
        if number == 1 and value != subject:
            raise DataError(
                f"{file.parent} holds an evaluation of something else (different: "
                f"{', '.join(_different(value, subject))}); choose another --out, or remove {file.name} and "
                "what else it wrote there"
            )
        good += len(line)
    return good


def _different(there: Any, now: Any, name: str = "") -> list[str]:
    """Names of the fields in which two subjects differ, such as seed, model.weights."""
    if not (isinstance(there, dict) and isinstance(now, dict)):
        return [] if there == now else [name or "all"]
    names = {inner: f"{name}.{inner}".lstrip(".") for inner in {**there, **now}}
    # What is missing is not null: `...` is equal to nothing that JSON has.
    inside = (_different(there.get(one, ...), now.get(one, ...), names[one]) for one in names)
    return list(chain.from_iterable(inside))

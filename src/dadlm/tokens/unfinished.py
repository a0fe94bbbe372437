"""A folder that takes its name when it is finished, and until then keeps what is worth going on with.

It is built beside its place, as `.NAME.partial`. One process at a time works there; others wait for it and
then find the folder finished, or go on where the first one was killed. Knows nothing of what is written.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dadlm.errors import DataError

_LOCK = "lock"


@contextmanager
def unfinished(target: Path, journal: str) -> Iterator[Path | None]:
    """The unfinished folder for us alone, renamed to `target` at the end; None when that is there already.

    Whatever stops us, the folder stays if it holds a file `journal`: the next run goes on from there.
    """
    partial = target.with_name(f".{target.name}.partial")
    try:
        lock = _claim(partial)
    except OSError as error:
        raise DataError(f"cannot write to {target.parent}: {error.strerror or error}") from error
    try:
        if target.exists():  # another process finished it while we waited
            yield None
            return
        yield partial
        partial.rename(target)
        sync_folder(target.parent)
        for name in (
            journal,
            _LOCK,
        ):  # after the renaming: a kill in between leaves two files that nobody reads
            (target / name).unlink(missing_ok=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(
                f"disk full while writing to {target.parent}: free space and run again"
            ) from error
        raise
    finally:
        if target.exists() or not (partial / journal).exists():
            shutil.rmtree(partial, ignore_errors=True)
        lock.close()


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _claim(partial: Path) -> BinaryIO:
    """Wait until nobody else works in the folder; a kill ends the claim with the process."""
    while True:
        partial.mkdir(parents=True, exist_ok=True)
        try:
            lock = (partial / _LOCK).open("wb")
        except FileNotFoundError:  # renamed or removed in between
            continue
        _wait(lock)
        if _still_at(partial / _LOCK, lock):
            return lock
        lock.close()  # whoever held it has renamed or removed the folder


def _wait(lock: BinaryIO) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        return
    with suppress(OSError):  # some network file systems have no locks
        fcntl.flock(lock, fcntl.LOCK_EX)


def _still_at(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False

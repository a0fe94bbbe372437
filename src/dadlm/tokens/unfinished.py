"""A folder that is built as `.NAME.partial` and gets its name when it is finished; building can be resumed.

One process at a time works there, others wait. Where the file system has no locks, the process that came
first notices at the end, and leaves the folder to the one that came last.
"""

import errno
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dadlm.errors import DataError

_LOCK = "lock"


@contextmanager
def unfinished(target: Path, journal: str) -> Iterator[Path | None]:
    """The unfinished folder, ours alone, renamed to `target` at the end; None if that exists already.

    If we are stopped, the folder stays if it holds a file `journal`: the next run resumes from there.
    """
    partial = target.with_name(f".{target.name}.partial")
    mark = f"{socket.gethostname()} {os.getpid()} {secrets.token_hex(8)}".encode()
    try:
        lock = _claim(partial, mark)
    except OSError as error:
        raise DataError(f"cannot write to {target.parent}: {error.strerror or error}") from error

    def check() -> None:
        if not _is_ours(partial, mark):
            raise DataError(
                f"another process has begun to write {target} as well, and this file system has no locks to "
                "keep the two apart: wait until that one is done, then run again"
            )

    try:
        if target.exists():  # another process finished it while we waited
            yield None
            return
        yield partial
        check()
        partial.rename(target)
        _sync(target.parent)  # the new name reaches the disk
        for name in (journal, _LOCK):  # after renaming: a kill in between leaves two files that nobody reads
            (target / name).unlink(missing_ok=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = f"disk full while writing to {target.parent}: free space and run again"
            raise DataError(reason) from error
        check()
        raise
    finally:
        if _is_ours(partial, mark) and (target.exists() or not (partial / journal).exists()):
            shutil.rmtree(partial, ignore_errors=True)
        lock.close()


def _claim(partial: Path, mark: bytes) -> BinaryIO:
    """Wait until nobody else works in the folder, then leave our mark; the lock ends with the process."""
    while True:
        partial.mkdir(parents=True, exist_ok=True)
        try:
            lock = (partial / _LOCK).open("ab")  # not truncated: the mark in it is somebody else's
        except FileNotFoundError:  # renamed or removed in between
            continue
        _wait(lock)
        with suppress(FileNotFoundError):
            if os.path.samestat((partial / _LOCK).stat(), os.fstat(lock.fileno())):
                lock.truncate(0)
                lock.write(mark)
                lock.flush()
                return lock
        lock.close()  # whoever held it has renamed or removed the folder


def _is_ours(partial: Path, mark: bytes) -> bool:
    with suppress(OSError):
        return (partial / _LOCK).read_bytes() == mark
    return False


def _sync(folder: Path) -> None:
    with suppress(OSError):  # Windows and some network file systems cannot
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _wait(lock: BinaryIO) -> None:
    with suppress(ImportError, OSError):  # Windows; some network file systems have no locks
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX)

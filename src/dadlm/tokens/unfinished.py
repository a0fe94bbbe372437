"""A folder that takes its name when it is finished; until then it can be resumed.

It is built beside its place, as `.NAME.partial`. One process at a time works there; others wait for it and
then find the folder finished, or resume where the first one was killed. Where the file system has no locks,
the process that came first notices at the end, and leaves the folder to the one that came last.
"""

import errno
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dadlm.errors import DataError

_LOCK = "lock"


@contextmanager
def unfinished(target: Path, journal: str) -> Iterator[Path | None]:
    """The unfinished folder for us alone, renamed to `target` at the end; None when that is there already.

    Whatever stops us, the folder stays if it holds a file `journal`: the next run resumes from there.
    """
    partial = target.with_name(f".{target.name}.partial")
    try:
        claim = _claim(partial)
    except OSError as error:
        raise DataError(f"cannot write to {target.parent}: {error.strerror or error}") from error
    try:
        if target.exists():  # another process finished it while we waited
            yield None
            return
        yield partial
        if not claim.holds:
            raise DataError(_not_alone(target))
        partial.rename(target)
        sync_folder(target.parent)
        for name in (journal, _LOCK):  # after renaming: a kill in between leaves two files that nobody reads
            (target / name).unlink(missing_ok=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = f"disk full while writing to {target.parent}: free space and run again"
            raise DataError(reason) from error
        if not claim.holds:
            raise DataError(_not_alone(target)) from error
        raise
    finally:
        if claim.holds and (target.exists() or not (partial / journal).exists()):
            shutil.rmtree(partial, ignore_errors=True)
        claim.file.close()


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True)
class _Claim:
    """Ours is the folder whose lock bears our mark."""

    path: Path
    file: BinaryIO
    mark: bytes

    @property
    def holds(self) -> bool:
        with suppress(OSError):
            return self.path.read_bytes() == self.mark
        return False


def _claim(partial: Path) -> _Claim:
    """Wait until nobody else works in the folder; a kill ends the claim with the process."""
    while True:
        partial.mkdir(parents=True, exist_ok=True)
        try:
            lock = (partial / _LOCK).open("ab")  # as it is: the mark in it is somebody else's
        except FileNotFoundError:  # renamed or removed in between
            continue
        _wait(lock)
        if _still_at(partial / _LOCK, lock):
            mark = f"{socket.gethostname()} {os.getpid()} {secrets.token_hex(8)}".encode()
            lock.truncate(0)
            lock.write(mark)
            lock.flush()
            return _Claim(partial / _LOCK, lock, mark)
        lock.close()  # whoever held it has renamed or removed the folder


def _not_alone(target: Path) -> str:
    return (
        f"another process has begun to write {target} as well, and this file system has no locks to keep the "
        "two apart: wait until that one is done, then run again"
    )


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

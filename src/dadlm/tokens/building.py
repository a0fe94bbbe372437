"""A folder that appears whole or not at all. Knows nothing of what is written into it."""

import errno
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dadlm.errors import DataError

_STALE = 24 * 3600  # seconds after which the leavings of a killed run are cleared away


@contextmanager
def building(target: Path) -> Iterator[Path]:
    """A temporary sibling of `target` that takes its name when all went well and vanishes when not.

    When another process finished the same folder meanwhile, that one stays and ours vanishes.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear_stale(target)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise DataError(f"cannot write to {target.parent}: {error.strerror or error}") from error
    try:
        yield temporary
        temporary.chmod(0o755)  # mkdtemp makes folders that nobody else can read
        temporary.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(
                f"disk full while writing to {target.parent}: free space and run again"
            ) from error
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _clear_stale(target: Path) -> None:
    """A run that is alive keeps writing; a temporary folder untouched for a day has nobody left."""
    for folder in target.parent.glob(f".{target.name}.*"):
        newest = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
        if time.time() - newest > _STALE:
            shutil.rmtree(folder, ignore_errors=True)

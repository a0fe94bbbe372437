"""One run, one training: two in the same folder would save over one another."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dadlm.errors import ConfigError
from dadlm.model.files import lock
from dadlm.train.ranks import Ranks


@contextmanager
def alone_in(out: Path, ranks: Ranks) -> Iterator[None]:
    """While this is open, nobody else trains in the folder. It is locked by the first process, for all."""
    is_new = ranks.first and not out.exists()
    descriptor = _opened(out) if ranks.first else None
    try:
        if ranks.any(descriptor is not None and not lock(descriptor)):
            raise ConfigError(f"another process trains in {out}: wait until it ends, or choose another --out")
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)
        if is_new:
            with suppress(OSError):  # it holds a run now
                out.rmdir()


def _opened(out: Path) -> int | None:
    out.mkdir(parents=True, exist_ok=True)
    return os.open(out, os.O_RDONLY) if os.name == "posix" else None

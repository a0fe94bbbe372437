"""Models by the names that people type, loaded once in a process."""

from functools import lru_cache
from pathlib import Path

from dadlm.model import Model, find_device, load
from dadlm.model.files import CONFIG
from dadlm.model.pretrained import locate, weight_files

_KEPT = 4  # models; the one that was not asked for the longest goes first


def model_of(model: Model | str | Path) -> Model:
    """The model itself, or the one of this name or folder, on the fastest device that there is.

    It is loaded again when its files have changed.
    """
    if isinstance(model, Model):
        return model
    folder = locate(model).resolve()
    stamps = tuple(file.stat().st_mtime_ns for file in (folder / CONFIG, *weight_files(folder)))
    return _loaded(folder, str(find_device("auto")), stamps)


@lru_cache(maxsize=_KEPT)
def _loaded(folder: Path, device: str, stamps: tuple[int, ...]) -> Model:
    return load(folder, device)


def release_models() -> None:
    """Forget the models that were asked for by name, so that their memory can be given back."""
    _loaded.cache_clear()

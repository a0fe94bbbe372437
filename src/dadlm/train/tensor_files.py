"""The tensors of a training state as files: one for all, or one for each process with its rows of each.

A tensor in several files is divided between rows of its first dimension, in the order of the files (a
number counts as one row). So a reader takes the rows it needs: a run saved by four processes
resumes with two, or one. (torch.distributed.checkpoint keeps its index as a pickle.)
"""

import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dadlm.errors import CheckpointError
from dadlm.model.files import save_tensors

_WHOLE, _PART = "state.safetensors", re.compile(r"state-(\d{5})-of-(\d{5})\.safetensors")


def save_whole(tensors: Mapping[str, Tensor], folder: Path) -> None:
    save_tensors(tensors, folder / _WHOLE)


def save_part(tensors: Mapping[str, Tensor], folder: Path, number: int, count: int) -> None:
    """Write this process' rows; what has no rows is the same everywhere, and the first one's to keep."""
    kept = {name: tensor for name, tensor in tensors.items() if tensor.ndim or number == 0}
    save_tensors(kept, folder / f"state-{number + 1:05d}-of-{count:05d}.safetensors")


class TensorFiles:
    """The files of a folder, open for reading. A context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._stack = folder, ExitStack()
        self._files: list[tuple[Any, set[str]]] = []

    def __enter__(self) -> "TensorFiles":
        for file in _find(self.folder):
            try:
                opened = self._stack.enter_context(safe_open(file, "pt"))
                self._files.append((opened, set(opened.keys())))
            except FileNotFoundError:
                raise CheckpointError(f"{file} does not exist") from None
            except (SafetensorError, OSError, ValueError) as error:
                raise CheckpointError(f"{file} is truncated or damaged: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def names(self) -> set[str]:
        return set().union(*(names for _, names in self._files))

    def read(self, name: str, first: int, last: int, rows: int) -> Tensor:
        """Rows first..last-1 of a tensor that must have so many."""
        parts, place = [], 0
        for file in (file for file, names in self._files if name in names):
            part = file.get_slice(name)
            is_number = not part.get_shape()
            count = 1 if is_number else part.get_shape()[0]
            here = slice(max(first - place, 0), max(min(last - place, count), 0))
            parts.append(file.get_tensor(name).reshape(1)[here] if is_number else part[here])
            place += count
        if place != rows:
            raise CheckpointError(f"training state: {name} has a shape with {place} rows, expected {rows}")
        return torch.cat(parts)


def _find(folder: Path) -> list[Path]:
    """The file of all, or those of each process, of which none may be missing."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    counts = [int(match[2]) for match in map(_PART.fullmatch, names) if match]
    if not counts:
        return [folder / _WHOLE]
    count = max(counts)
    return [folder / f"state-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]

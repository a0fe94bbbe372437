"""The tensors of a training state as files: one for all, or one for each process with its rows of each.

A tensor in several files is divided between rows of its first dimension (a number counts as one row), so a
run saved by four processes resumes with two, or one. (torch.distributed.checkpoint keeps a pickle.)
"""

import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from dadlm.errors import CheckpointError
from dadlm.model.files import open_tensors, save_tensors

_WHOLE, _PART = "state.safetensors", "state-{:05d}-of-{:05d}.safetensors"
_PART_NAME = re.compile(r"state-\d{5}-of-(\d{5})\.safetensors")


def save_rows(tensors: Mapping[str, Tensor], folder: Path, number: int, count: int) -> None:
    """Write this process' rows; what has no rows is the same everywhere, and the first one's to keep."""
    kept = {name: tensor for name, tensor in tensors.items() if tensor.ndim or number == 0}
    save_tensors(kept, folder / (_WHOLE if count == 1 else _PART.format(number + 1, count)))


class TensorFiles(ExitStack):
    """The files of a folder, open for reading until the end of the `with` block."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        files = [self.enter_context(open_tensors(file)) for file in _find(folder)]
        self._files = [(file, set(file.keys())) for file in files]

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
    counts = [int(match[1]) for match in map(_PART_NAME.fullmatch, names) if match]
    if not counts:
        return [folder / _WHOLE]
    return [folder / _PART.format(number, max(counts)) for number in range(1, max(counts) + 1)]

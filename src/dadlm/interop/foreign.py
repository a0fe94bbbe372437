"""Reads weights stored by others: safetensors, in one file or several with an index, or a PyTorch pickle.

Nothing is trusted: an index may name only files of its own folder, and a pickle is read by PyTorch's
restricted loader, which builds tensors and runs nothing.
"""

import zipfile
from pathlib import Path, PurePosixPath, PureWindowsPath

import torch
from torch import Tensor

from dadlm.errors import CheckpointError
from dadlm.model.files import CONFIG, load_tensors
from dadlm.model.untrusted import read_json

_SAFE, _PICKLE = "model.safetensors", "pytorch_model.bin"


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder; safetensors are preferred if there are both."""
    for name in (_SAFE, _PICKLE):
        if (folder / name).is_file():
            return _read_file(folder / name)
        if (folder / f"{name}.index.json").is_file():
            return _read_shards(folder / f"{name}.index.json")
    raise CheckpointError(
        f"{folder} has a {CONFIG}, but no weights: {_SAFE} or {_PICKLE}, or its parts and their index"
    )


def _read_shards(index: Path) -> dict[str, Tensor]:
    """The files that an index lists; each must hold exactly the tensors that the index says."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{index} has no weight_map")
    kind = Path(index.name.removesuffix(".index.json")).suffix
    for name in places.values():  # no way out of the folder on any system, and no pickle for safetensors
        plain = isinstance(name, str) and PurePosixPath(name).name == name == PureWindowsPath(name).name
        if not plain or not name.endswith(kind):
            raise CheckpointError(f"{index} names {name!r}, no {kind} file of its folder: nothing was read")
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(places.values())):
        part = _read_file(index.with_name(name))
        if part.keys() != {tensor for tensor, place in places.items() if place == name}:
            raise CheckpointError(f"{index.with_name(name)} does not hold what {index.name} names")
        tensors |= part
    return tensors


def _read_file(file: Path) -> dict[str, Tensor]:
    if file.suffix == ".safetensors":
        return load_tensors(file)
    _check_archive(file)
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a made-up file can provoke
        reason = str(error).strip().split("\n")[0]
        message = f"{file} holds more than tensors, or is damaged, and was not run: {reason}"
        raise CheckpointError(message) from error
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise CheckpointError(f"{file} is not a list of named tensors")
    strange = sorted(name for name, tensor in content.items() if not _is_plain(tensor))
    if strange:
        raise CheckpointError(f"{file} holds things that are no plain tensors: {', '.join(strange)}")
    return content


def _check_archive(file: Path) -> None:
    """Accept PyTorch's zip archive only: older forms unpack files, or are read by older loaders."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        message = f"{file} is not an archive of PyTorch 1.6 or newer ({error}): ask for safetensors"
        raise CheckpointError(message) from error
    bad = [n for n in names if "\\" in n or n.startswith("/") or ".." in PurePosixPath(n).parts]
    if bad:
        raise CheckpointError(f"{file} names {bad[0]!r} inside: nothing was read")


def _is_plain(tensor: object) -> bool:
    """Whether all its numbers are stored: a view that repeats a few could claim any size."""
    if not isinstance(tensor, Tensor) or type(tensor) not in (Tensor, torch.nn.Parameter):
        return False
    return tensor.layout == torch.strided and tensor.device.type == "cpu" and tensor.is_contiguous()

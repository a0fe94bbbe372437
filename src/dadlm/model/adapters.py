"""Gated adapters without the model they were trained on: a folder with what training has added, and the name
and a checksum of the base, whose own files are read where they are (`pretrained.weight_files`)."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dadlm.errors import CheckpointError, ConfigError
from dadlm.model.checkpoint import FORMATS, load, weights
from dadlm.model.files import CONFIG, WEIGHTS, digest, save_tensors, whole_folder, write_json
from dadlm.model.network import Model
from dadlm.model.pretrained import BASE, NAMES, PACKAGED, locate, weight_files
from dadlm.model.quantised import quantise


def save_adapters(source: str | Path, base: str | Path, folder: str | Path, *, bits: int = 32) -> Model:
    """Write what `source` has learned on `base`, all or nothing; returns the model. Its tokenizer is that of
    the base."""
    if bits not in FORMATS:
        raise ConfigError(f"weights are stored in 32 or 8 bits, not in {bits!r}")
    place = locate(base)
    _check_out(Path(folder), place, locate(source))
    model = load(source)
    if not model.config.lora_gated:
        raise ConfigError(
            f"{source} has no gated adapters, so it cannot be taken apart: begin with "
            "dadlm convert --from-causal BASE --lora 24 --gated, and train that"
        )
    original = load(base)
    own, theirs = weights(model), weights(original)
    _check_base(source, base, own, theirs)
    if model.tokenizer != original.tokenizer:
        raise CheckpointError(f"{base} has another tokenizer than {source}: it is not its base")
    added = {name: tensor for name, tensor in own.items() if name not in theirs}
    name = str(base) if base in (*NAMES, *PACKAGED) else str(place.resolve())
    with whole_folder(Path(folder)) as temporary:
        save_tensors(quantise(added) if bits == 8 else added, temporary / WEIGHTS)
        about: dict[str, Any] = {"model_type": "dadlm", "format": FORMATS[bits]}
        about |= {BASE: {"model": name, "weights_sha256": digest(*weight_files(place))}}
        about |= {"weights_sha256": digest(temporary / WEIGHTS)}
        write_json(temporary / CONFIG, about | asdict(model.config))
    return model


def _check_out(out: Path, *read: Path) -> None:
    """Refuse to replace what the adapters need with the adapters."""
    places = {file.parent.resolve() for place in read for file in weight_files(place)}
    if out.resolve() in places:
        raise ConfigError(f"{out} is read from, and would be replaced: name another folder")


def _check_base(
    source: str | Path, base: str | Path, own: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]
) -> None:
    """Every weight of the base must be there, unchanged, and none may be an adapter's."""
    if any(".lora_" in name for name in theirs):
        raise ConfigError(
            f"{base} has adapters itself: name the model that it was converted from, as family ar"
        )
    other = [name for name in theirs if name not in own or not torch.equal(own[name], theirs[name])]
    if other:
        raise CheckpointError(
            f"{source} was not trained on {base}: {len(other)} of its {len(theirs)} tensors are others "
            f"({other[0]}, for example); name the model that it was converted from, as family ar"
        )

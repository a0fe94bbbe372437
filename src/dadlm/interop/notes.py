"""What our format has no place for in a published folder: kept in `published.json` beside the weights.

With it the folder is written back bit for bit; a model without it is written as its authors would have.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dadlm.errors import CheckpointError
from dadlm.evaluate.untrusted import read_json
from dadlm.interop.names import CONSTANTS, INV_FREQ
from dadlm.interop.shape import config_of, is_same, shape_of
from dadlm.model import ModelConfig
from dadlm.model.files import write_json

NOTES = "published.json"


@dataclass(frozen=True, kw_only=True)
class Notes:
    """All of it is data of JSON."""

    config: dict[str, Any]
    """Their config.json."""
    bfloat16: list[str]
    """Tensors that are stored so; the others are float32."""
    values: dict[str, Any]
    """The constants that they store with the weights."""

    def tensors(self) -> dict[str, Tensor]:
        """The constants, as float32."""
        try:
            return {name: torch.tensor(value, dtype=torch.float32) for name, value in self.values.items()}
        except (TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{NOTES} is damaged ({error}): remove it to write float32") from error

    def check(self, config: ModelConfig, names: Collection[str]) -> None:
        """Anybody may have changed the file: only notes of this model, whose tensors are `names`."""
        known = set(names).union(self.values)
        if not self.values.keys() <= set(CONSTANTS) or not all(name in known for name in self.bfloat16):
            raise CheckpointError(
                f"{NOTES} names tensors that this model has not: remove it to write float32"
            )
        if not is_same(shape_of(self.config, NOTES), config):
            raise CheckpointError(f"{NOTES} belongs to another model: remove it to write float32")

    def write(self, folder: Path) -> None:
        write_json(folder / NOTES, asdict(self))


def take_notes(their: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Notes:
    """Of a published folder."""
    return Notes(
        config=dict(their),
        bfloat16=sorted(name for name, tensor in tensors.items() if tensor.dtype == torch.bfloat16),
        values={name: tensors[name].tolist() for name in CONSTANTS if name in tensors},
    )


def read_notes(folder: Path) -> Notes | None:
    """Of one of our folders, if it has them."""
    file = folder / NOTES
    if not file.is_file():
        return None
    content = read_json(file)
    kinds = {"config": dict, "bfloat16": list, "values": dict}
    names = {field.name for field in fields(Notes)}
    if content.keys() != names or not all(isinstance(content[name], kinds[name]) for name in names):
        raise CheckpointError(f"{file} is damaged: remove it to write float32")
    return Notes(**content)


def new_notes(config: ModelConfig) -> Notes:
    """What the authors would have written beside a model that we trained."""
    values: dict[str, Any] = {INV_FREQ: speeds(config).tolist()}
    their = config_of(config)
    if config.family == "bd3lm":
        interval = {"sampling_eps_min": 1e-3, "sampling_eps_max": 1.0}
        their, values = their | interval, values | interval
    return Notes(config=their, bfloat16=[], values=values)


def speeds(config: ModelConfig) -> Tensor:
    """Radians per position of each pair of a head."""
    width = config.width // config.heads
    return 1.0 / 10000.0 ** (torch.arange(0, width, 2).float() / width)

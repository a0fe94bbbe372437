"""Tiny models in the place of those that ship with the package."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from tests.decode.tiny import tiny

from dadlm.model import Model, pretrained, save
from dadlm.tokens import word_level
from dadlm.train.edges import set_edges, with_edges
from tools.ship_edges import BASES, put_edges

WORDS = [f"w{number}" for number in range(28)]


def ship_tiny(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Model]:
    """Put tiny models of the names into a folder that stands in for the package's own; those of the tour,
    which are tiny, are the package's."""
    models = {}
    for seed, name in enumerate(("dadlm", "bd3lm", "ar")):
        models[name] = tiny(name, tokenizer=word_level(WORDS), seed=seed)
        save(models[name], folder / name, bits=8)
        (folder / name / "tokenizer.json").rename(folder / "tokenizer.json")
    for name in ("tour-dadlm", "tour-bd3lm"):
        shutil.copytree(pretrained.PRETRAINED / name, folder / name)
    monkeypatch.setattr(pretrained, "PRETRAINED", folder)
    for base in BASES:
        models[f"{base}-edges"] = edged(models[base])
    put_edges(models["dadlm-edges"], folder)
    return models


def edged(plain: Model) -> Model:
    """The model with edges that are the same for all."""
    model, generator = with_edges(plain, rank=4), torch.Generator().manual_seed(5)
    left, right = (torch.randn(plain.config.mask_id, 4, generator=generator) for _ in range(2))
    set_edges(model, left, right)
    return model


def change_config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))

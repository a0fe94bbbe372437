"""Tiny models in the place of those that ship with the package."""

import json
from pathlib import Path

import pytest
from tests.decode.tiny import tiny

from dadlm.model import Model, pretrained, save
from dadlm.tokens import word_level

WORDS = [f"w{number}" for number in range(28)]


def ship_tiny(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Model]:
    """Put tiny models of the three names into a folder that stands in for the package's own."""
    models = {}
    for seed, name in enumerate(pretrained.NAMES):
        models[name] = tiny(name, tokenizer=word_level(WORDS), seed=seed)
        save(models[name], folder / name, bits=8)
        (folder / name / "tokenizer.json").rename(folder / "tokenizer.json")
    monkeypatch.setattr(pretrained, "PRETRAINED", folder)
    return models


def change_config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))

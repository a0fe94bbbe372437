"""Converts a model's folder between forms: ours, the published ones, and that of transformers."""

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from dadlm.errors import ConfigError
from dadlm.interop.hub import CARD
from dadlm.interop.published import read_published, write_published
from dadlm.interop.published_form import FAMILIES, NOTES, Notes, read_notes
from dadlm.model import Model, load
from dadlm.model.checkpoint import locate, merged, write_model
from dadlm.model.files import CONFIG, MODEL_TYPE, whole_folder, write_json
from dadlm.model.pretrained import shipped
from dadlm.model.untrusted import read_json

Form = Literal["dadlm", "bd3lm", "mdlm", "transformers"]


def convert(
    source: str | Path,
    out: str | Path,
    to: Form = "dadlm",
    family: str | None = None,
    block_size: int | None = None,
) -> Model:
    """Read a model in any form and write it and its model card to `out`, all or nothing.

    `source` is a folder, a training run, the name of a model that ships with dadlm, or one on the hub.
    `family` and `block_size` say how to use published weights, if not as published.
    """
    folder = Path(source)
    if shipped(source) is not None or not (folder / CONFIG).is_file():
        folder = locate(source)  # unlike `load`, with weights of any form
    if Path(out).resolve() == folder.resolve():
        raise ConfigError(f"{out} is where the model is read from: name another folder")
    if read_json(folder / CONFIG).get("model_type") != MODEL_TYPE:
        model, notes = read_published(folder, family, block_size)
    elif family is not None or block_size is not None:
        raise ConfigError(f"{folder} is a dadlm model: family and block size are what it was trained with")
    else:
        model, notes = merged(load(folder)), read_notes(folder)
    if to in FAMILIES and model.config.family != to:
        raise ConfigError(f"this is a {model.config.family} model, which has no {to} form")
    card = folder / CARD
    # Files of a form may be replaced by the same form's; a card only by another card.
    may_replace = {
        "transformers": (CARD, "generation_config.json", "modeling_dadlm.py", "tokenizer_config.json"),
        "dadlm": (NOTES,),
    }
    replaced = (*may_replace.get(to, ()), *([CARD] if card.is_file() else []))
    types = (MODEL_TYPE, to) if to in FAMILIES else (MODEL_TYPE,)
    with whole_folder(Path(out), may_replace=replaced, model_types=types) as temporary:
        _write(temporary, model, to, notes)
        if card.is_file():
            shutil.copyfile(card, temporary / CARD)
    return model


def _write(folder: Path, model: Model, to: Form, notes: Notes | None) -> None:
    if to == "transformers":
        from dadlm.interop.transformers import write_transformers  # here, because transformers is an extra

        write_transformers(folder, model)
    elif to == "dadlm":
        write_model(folder, model)
        if notes is not None:
            write_json(folder / NOTES, asdict(notes))
    else:
        write_published(folder, model, notes)

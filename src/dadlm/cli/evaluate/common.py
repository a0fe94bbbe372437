"""What the kinds of evaluation share on the command line: options, models and their names."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import Field, dataclass, fields
from pathlib import Path, PurePath
from typing import Any, ClassVar, Literal

from dadlm.cli.options import open_model
from dadlm.errors import ConfigError
from dadlm.evaluate import rows_of
from dadlm.model import Mode, Model, find_device, in_mode
from dadlm.model.pretrained import shipped
from dadlm.tokens import Rows


@dataclass(frozen=True, kw_only=True)
class Common:
    """Options of every kind; a kind adds its own."""

    decides: ClassVar[tuple[str, ...]] = ()
    """Options that decide the result of this kind, and of others only the speed."""

    out: str = ""
    """Folder for the result and for the pieces to resume from.
    Empty: evaluation/KIND-MODELS-DATA, followed by the options that are not the default."""
    seed: int = 0
    """Seed of everything random."""
    batch_size: int = 16
    """Rows processed at once; affects speed, not results."""
    device: str = "auto"
    """cpu, cuda, or auto (cuda if available)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 is several times faster on a GPU; only float32 gives the same numbers at every batch size."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def __post_init__(self) -> None:
        if not -(2**63) <= self.seed < 2**63:
            raise ConfigError("seed must fit into 64 bits")
        if self.batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1, got {self.batch_size}")

    def run(self, folder: Path) -> dict[str, Any]:
        """What every evaluation takes."""
        return {"seed": self.seed, "batch_size": self.batch_size, "out": folder, "quiet": self.json}


@dataclass(frozen=True, kw_only=True)
class OnText(Common):
    """Options of kinds that read rows of text."""

    data: str = ""
    """A .txt, .jsonl, .jsonl.zst or .parquet file, a folder or pattern of these, or hf:NAME (a dataset)."""
    text_field: str = "text"
    """Field of a record that holds the text."""
    cache: str = ".dadlm-cache"
    """Folder for tokenised shards."""

    def rows(self, model: Model, length: int | None = None) -> tuple[Rows, dict[str, Any]]:
        options = {"cache": self.cache, "text_field": self.text_field, "quiet": self.json}
        return rows_of(model, self.data, length=length, **options)


@dataclass(frozen=True, kw_only=True)
class OneModel(Common):
    model: str = "dadlm"
    """Name of a shipped model (see `dadlm models`), folder of a model or
    of a training run (uses its best checkpoint), or Hugging Face name."""


# They do not decide the result, or may be secret.
_NOT_IN_NAMES = {"out", "json", "cache", "device", "batch_size", "body"} | {
    *("concurrency", "timeout", "price_in", "price_out")
}
_PLACES = ("data", "samples", "planted", "judge", "judge_lm", "embedder")
_LONGEST_NAME = 100


def default_folder(kind: str, options: Common) -> Path:
    """A folder of its own for each evaluation: started again, one finds its pieces, and no other does."""
    first = ("model", "against", "data")
    others = [one for one in fields(options) if one.name not in first and _is_given(options, one)]
    words = [kind]
    for name in (*first, *(one.name for one in others)):
        value = getattr(options, name, None) or ()
        many = list(map(str, value if isinstance(value, tuple) else (value,)))
        if name in ("model", "against"):
            many = names_of(many)
        elif name in _PLACES:
            many = list(map(_last_part, many))
        words += many if name in first else [name, *many]
    whole = "-".join(re.sub(r"[^\w.=,+]+", "-", word).strip("-.") for word in words)
    if len(whole) > _LONGEST_NAME:
        whole = f"{whole[:_LONGEST_NAME]}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"
    return Path("evaluation", whole)


def _is_given(options: Common, one: Field) -> bool:
    """Whether an option decides the result and is not the default."""
    hidden = _NOT_IN_NAMES - {*options.decides}
    return one.name not in hidden and getattr(options, one.name) != one.default


def _last_part(place: str) -> str:
    """What a file or folder is called, without the endings of its format."""
    path = PurePath(place.removeprefix("hf:"))
    name = path.parent.name if path.name == "samples" and path.parent.name else path.name
    return re.sub(r"(\.(txt|jsonl|json|parquet|zst|gz))+$", "", name)


def load_model(folder: str, options: Common) -> Model:
    return open_model(folder, str(find_device(options.device)), options.dtype)


def load_models(folders: Sequence[str], options: Common, mode: Mode = "diffusion") -> dict[str, Model]:
    """Models by their names, in a mode."""
    names = names_of(folders)
    if len(set(names)) < len(names):
        raise ConfigError(f"--model names a model twice: {' '.join(folders)}")
    models = {name: load_model(folder, options) for name, folder in zip(names, folders, strict=True)}
    return {name: in_mode(model, mode) for name, model in models.items()}


def names_of(folders: Sequence[str]) -> list[str]:
    """Each folder's own name, or its run's if it is called last or best; with parents where two are alike."""
    places = [Path(shipped(folder) or folder).absolute() for folder in folders]
    runs = [place.parent if place.name in ("last", "best") else place for place in places]
    if len(set(runs)) == len(set(places)):  # else both are compared, and must be told apart
        places = runs
    depth = 1
    while True:
        names = ["/".join(place.parts[-depth:]) for place in places]
        if len(set(names)) == len(set(places)):
            return names
        depth += 1

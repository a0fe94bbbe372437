"""Files of a model on disk: whole folders, tensors and JSON, no pickle. Writing goes to a temporary sibling
that is renamed at the end: a folder is either whole or absent."""

import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dadlm.errors import CheckpointError

WEIGHTS, CONFIG = "model.safetensors", "config.json"
MODEL_TYPE = "dadlm"
"""What "model_type" in config.json of every folder of ours says."""
_JSON_BYTES = 1 << 20
_OURS = {WEIGHTS, CONFIG, "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "training"}


@contextmanager
def whole_folder(
    target: Path, may_replace: Collection[str] = (), model_types: Collection[str] = (MODEL_TYPE,)
) -> Iterator[Path]:
    """Yield a temporary folder that replaces `target` only if the body raises nothing. A target that is no
    model of these types, or holds more than its files and those of `may_replace`, is refused."""
    target, temporary = target.resolve(), None  # through a link, not over it
    try:
        if target.exists() and not _is_replaceable(target, _OURS.union(may_replace), model_types):
            raise CheckpointError(
                f"{target} exists and is no model folder of ours: nothing was written; choose another"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        yield temporary
        _finish(temporary)
        _replace(temporary, target)
    except (OSError, SafetensorError) as error:  # of a full disk, the second
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"could not write {target}: {reason}; nothing was replaced") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _is_replaceable(target: Path, names: Collection[str], model_types: Collection[str]) -> bool:
    """Whether everything in it was written by us. Names alone do not say so: the models of others have files
    of the same names."""
    if not target.is_dir():
        return False
    found = {path.name for path in target.iterdir()}
    if not found or not found.issubset(names):
        return not found
    with suppress(CheckpointError):
        return read_json(target / CONFIG, "a configuration").get("model_type") in model_types
    return False


@contextmanager
def whole_file(file: Path) -> Iterator[BinaryIO]:
    """A file that appears whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}-{secrets.token_hex(4)}")  # of this writer alone
    try:
        with open(temporary, "xb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def _replace(temporary: Path, target: Path) -> None:
    """A folder cannot be renamed over a full one: step the old one aside, and back if that fails."""
    aside = temporary.with_name(temporary.name + "-old")
    if target.exists():
        target.rename(aside)
    try:
        temporary.rename(target)
    except OSError:
        if aside.exists():
            aside.rename(target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _finish(folder: Path) -> None:
    """Give folders and files the modes that the user's umask asks for, and sync them to the disk."""
    umask = os.umask(0)
    os.umask(umask)
    for path in (folder, *folder.rglob("*")):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)
        if path.is_file():
            with open(path, "rb") as handle:
                os.fsync(handle.fileno())


def save_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Write tensors to a safetensors file; a full disk is an OSError like any other."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(contiguous, file, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from error


@contextmanager
def open_tensors(file: Path) -> Iterator[Any]:
    """A safetensors file open for reading; a missing or damaged one is refused."""
    if not file.is_file():  # a pipe would be waited for
        raise CheckpointError(f"{file} {'is no regular file' if file.exists() else 'does not exist'}")
    try:
        open(file, "rb").close()  # `safe_open` reports a file that it cannot open as missing
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error
    try:
        with safe_open(file, "pt") as opened:
            yield opened
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{file} is truncated or damaged: {error}") from error


def load_tensors(file: Path) -> dict[str, Tensor]:
    with open_tensors(file) as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


def read_shapes(file: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of every tensor of a safetensors file, from its header alone."""
    with open_tensors(file) as opened:
        parts = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
        return {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in parts.items()}


def read_json(file: Path, what: str) -> dict[str, Any]:
    """A JSON object from an untrusted file: neither too large nor too deep."""
    try:
        with open(file, "rb") as handle:
            text = handle.read(_JSON_BYTES + 1)
        if len(text) > _JSON_BYTES:
            raise ValueError(f"it is larger than {_JSON_BYTES} bytes")
        content = json.loads(text.decode("utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is not an object")
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not {what}, or is damaged: {error}") from error
    return content


def write_json(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def digest(*files: Path) -> str:
    """The SHA-256 of files, one after the other."""
    found = hashlib.sha256()
    for file in files:
        with open(file, "rb") as handle:
            hashlib.file_digest(handle, lambda: found)
    return found.hexdigest()


def lock(descriptor: int) -> bool:
    """Lock a file until it is closed; False if another process has it. True where there are no locks."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # Windows, and some network file systems
        pass
    return True

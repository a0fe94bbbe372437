"""Named sources of text: a file, a folder, a pattern, or a dataset on the Hugging Face hub.

A source is a string: `book.txt`, `data/`, `data/part-*.jsonl.zst`, `hf:NAME` or `hf:NAME:CONFIG`. A .txt file
is one document; so is a line of .jsonl, a row of .parquet or of a dataset, its text under `text_field`.
"""

import glob
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dadlm.errors import DataError
from dadlm.tokens import hub
from dadlm.tokens.pieces import Piece
from dadlm.tokens.readers import check_regular, file_format, read_file

_HASH_ALL = 256 << 20  # a second of hashing; of larger files only both ends are hashed
_HASH_END = 1 << 20
_KNOWN = ".txt and .jsonl (also with .gz or .zst) and .parquet"


def read_pieces(
    source: str | os.PathLike[str], text_field: str = "text", split: str = "train", anchor: Any = None
) -> Iterator[Piece]:
    """The documents of a source in order, in bounded pieces, from a piece's `anchor` on."""
    empty = True
    for piece in _pieces(os.fspath(source), text_field, split, anchor):
        empty = False
        yield piece
    if empty:
        raise DataError(f"{source} holds no documents: every text in it is empty")


def read_texts(
    source: str | os.PathLike[str], text_field: str = "text", split: str = "train"
) -> Iterator[str]:
    """The documents of a source in order, each as a whole: memory must hold the longest."""
    parts: list[str] = []
    for piece in read_pieces(source, text_field, split):
        parts.append(piece.text)
        if piece.ends:
            yield "".join(parts)
            parts.clear()


def find_files(source: str | os.PathLike[str]) -> list[Path]:
    """The files of a local source, sorted by name; of a folder, all that we can read, at any depth."""
    path = Path(source)
    if path.is_dir():
        found = sorted(p for p in _below(path) if p.is_file() and any(file_format(p)))
        missing = f"folder {path} holds no text: expected files ending in {_KNOWN}"
    elif path.exists():
        check_regular(path)
        found, missing = [path], ""
    else:
        found = sorted(p for p in map(Path, glob.glob(str(source), recursive=True)) if p.is_file())
        missing = f"no file, folder or pattern {str(source)!r} found; a hub dataset is written hf:NAME"
    if not found:
        raise DataError(missing)
    for file in found:
        if not any(file_format(file)):
            ending = (
                f"files ending in {file.suffix!r} are unknown" if file.suffix else "its name has no ending"
            )
            raise DataError(f"{file}: {ending}; expected {_KNOWN}")
        if file.stat().st_size == 0:
            raise DataError(f"{file} is empty")
    return [file.parent.resolve() / file.name for file in found]  # a link's own name tells the format


def describe(source: str | os.PathLike[str], split: str = "train") -> list[dict[str, object]]:
    """What identifies a source: for each file its full name, size and content hash; a dataset's revision.

    The hash of a file above 256 MiB is of its first and last MiB, size and modification time.
    """
    name = os.fspath(source)
    if hub.is_dataset(name):
        return [hub.describe(name, split)]
    return [{"file": str(f), "size": f.stat().st_size, "hash": _content_hash(f)} for f in find_files(name)]


def size_of(source: str | os.PathLike[str]) -> int | None:
    """Bytes of a source on disk, which `Piece.read` reaches in the end; None if unknown."""
    name = os.fspath(source)
    return None if hub.is_dataset(name) else sum(file.stat().st_size for file in find_files(name))


def _pieces(source: str, text_field: str, split: str, anchor: Any) -> Iterator[Piece]:
    if hub.is_dataset(source):
        yield from hub.read(source, text_field, split, anchor)
        return
    before = 0
    for number, file in enumerate(find_files(source)):
        if anchor is None or number >= anchor:
            for piece in read_file(file, text_field):
                yield Piece(piece.text, piece.ends, before + piece.read, number)
        before += file.stat().st_size


def _below(folder: Path) -> Iterator[Path]:
    """All files of a folder, also through links to other folders, but no folder twice."""
    seen: set[str] = set()
    for root, folders, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(root)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        yield from (Path(root, name) for name in names)


def _content_hash(file: Path) -> str:
    stat, digest = file.stat(), hashlib.sha256()
    with file.open("rb") as stream:
        if stat.st_size <= _HASH_ALL:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        digest.update(f"{stat.st_size} {stat.st_mtime_ns}".encode())
        digest.update(stream.read(_HASH_END))
        stream.seek(-_HASH_END, os.SEEK_END)
        digest.update(stream.read(_HASH_END))
    return digest.hexdigest()

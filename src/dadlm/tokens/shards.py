"""Token ids on disk: plain little-endian integers, memory-mapped, and an index with their checksums.

    <name>/index.json        version, dtype, counts, checksums, and what the tokens were made from
    <name>/tokenizer.json    the tokenizer that made them
    <name>/shard-00000.bin   ids of documents one after another, end-of-text after each

The index names no files: a shard's name follows from its number, so no index can point elsewhere.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dadlm.errors import DataError

VERSION = 2
INDEX = "index.json"


def shard_name(number: int) -> str:
    return f"shard-{number:05d}.bin"


@dataclass(frozen=True, kw_only=True)
class Index:
    """The content of index.json."""

    version: int = VERSION
    dtype: str
    """"<u2" if every id fits into 16 bits, else "<u4"."""
    shards: list[int]
    """Tokens in each shard file."""
    sha256: list[str]
    """Checksum of each shard file."""
    tokens: int
    documents: int
    text_bytes: int
    """UTF-8 bytes of the text the tokens were made from."""
    vocab_size: int
    eot_id: int
    identity: dict[str, Any]
    """What the folder's name is a hash of: the tokenizer's fingerprint, options, source."""

    def __post_init__(self) -> None:
        """A file may hold anything."""
        if self.dtype not in ("<u2", "<u4"):
            raise ValueError(f"dtype {self.dtype!r}")
        if not all(type(count) is int and count > 0 for count in self.shards):
            raise ValueError("counts of tokens")
        if len(self.sha256) != len(self.shards) or sum(self.shards) != self.tokens:
            raise ValueError("its shards do not add up")

    def write(self, folder: Path) -> None:
        with (folder / INDEX).open("w", encoding="utf-8") as file:
            json.dump(asdict(self), file, indent=2)
            file.flush()
            os.fsync(file.fileno())  # before the folder gets its name

    @classmethod
    def read(cls, folder: Path) -> "Index":
        try:
            content = json.loads((folder / INDEX).read_text(encoding="utf-8"))
            if content["version"] == VERSION:
                return cls(**content)
        except FileNotFoundError as error:
            raise DataError(f"{folder} holds no {INDEX}: it is not a folder of prepared tokens") from error
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{folder / INDEX} is damaged ({error}); {_AGAIN}") from error
        raise DataError(f"{folder} has format version {content['version']}, expected {VERSION}; {_AGAIN}")


_AGAIN = "delete the folder and prepare the data again"


@dataclass(frozen=True)
class Shards:
    """A finished folder of tokens; get one with `open`."""

    folder: Path
    index: Index
    arrays: tuple[np.ndarray, ...]
    """One memory-mapped array of ids per shard file, in order."""

    @property
    def tokens(self) -> int:
        return self.index.tokens

    @property
    def documents(self) -> int:
        return self.index.documents

    @classmethod
    def open(cls, folder: str | Path) -> "Shards":
        """Map the shards of a folder, after checking that every file is there in full size."""
        folder = Path(folder)
        index = Index.read(folder)
        dtype, arrays = np.dtype(index.dtype), []
        for number, count in enumerate(index.shards):
            file, size = folder / shard_name(number), count * dtype.itemsize
            if file.is_symlink():
                raise DataError(f"{file} is a link: shards lie in their folder and nowhere else; {_AGAIN}")
            if not file.is_file():
                raise DataError(f"{file} is missing; {_AGAIN}")
            if (found := file.stat().st_size) != size:
                raise DataError(f"{file} has {found} bytes where the index says {size}; {_AGAIN}")
            # A plain view: memmap's own slicing is slow.
            arrays.append(np.asarray(np.memmap(file, dtype=dtype, mode="r")))
        return cls(folder, index, tuple(arrays))


def verify(folder: str | Path) -> Shards:
    """Compare every byte of a finished folder with the index; returns the shards if all is well."""
    shards = Shards.open(folder)
    for number, expected in enumerate(shards.index.sha256):
        file = shards.folder / shard_name(number)
        if (found := file_hash(file)) != expected:
            raise DataError(f"{file} is damaged: its SHA-256 is {found}, the index says {expected}; {_AGAIN}")
        if int(shards.arrays[number].max()) >= shards.index.vocab_size:
            raise DataError(f"{file} holds ids outside the vocabulary of {shards.index.vocab_size}; {_AGAIN}")
    return shards


def file_hash(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

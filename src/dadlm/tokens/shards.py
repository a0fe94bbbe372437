"""Token ids on disk: plain little-endian integers, memory-mapped, beside an index that vouches for them.

    <name>/index.json        version, dtype, counts, and what the tokens were made from
    <name>/tokenizer.json    the tokenizer that made them
    <name>/shard-00000.bin   ids of documents one after another, end-of-text after each

Knows neither where text comes from and how it is tokenised (`packing.py`), nor rows (`loader.py`).
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dadlm.errors import DataError

VERSION = 1
INDEX = "index.json"


def shard_name(number: int) -> str:
    return f"shard-{number:05d}.bin"


@dataclass(frozen=True, kw_only=True)
class Index:
    """The content of index.json."""

    version: int = VERSION
    dtype: str
    """"<u2" when every id fits into 16 bits, else "<u4"."""
    shards: list[int]
    """Tokens in each shard file."""
    tokens: int
    documents: int
    text_bytes: int
    """UTF-8 bytes of the text the tokens were made from."""
    vocab_size: int
    eot_id: int
    identity: dict[str, Any]
    """What the folder's name is a hash of: tokenizer fingerprint, options, source."""

    def write(self, folder: Path) -> None:
        (folder / INDEX).write_text(json.dumps(asdict(self), indent=2), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "Index":
        try:
            content = json.loads((folder / INDEX).read_text(encoding="utf-8"))
            if content["version"] != VERSION:
                raise DataError(
                    f"{folder} has format version {content['version']}, expected {VERSION}; {_AGAIN}"
                )
            return cls(**content)
        except FileNotFoundError as error:
            raise DataError(f"{folder} holds no {INDEX}: it is not a folder of prepared tokens") from error
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise DataError(f"{folder / INDEX} is damaged ({error}); {_AGAIN}") from error


_AGAIN = "delete the folder and prepare the data again"


@dataclass(frozen=True)
class Shards:
    """A finished folder of tokens; `open` is the way to get one."""

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
        """Map the shards of a folder, after a check that every file is there in its full size."""
        folder = Path(folder)
        index = Index.read(folder)
        dtype = np.dtype(index.dtype)
        if sum(index.shards) != index.tokens:
            raise DataError(f"{folder / INDEX} is damaged: its shards do not add up; {_AGAIN}")
        for number, count in enumerate(index.shards):
            _check_size(folder / shard_name(number), count * dtype.itemsize)
        return cls(
            folder, index, tuple(_map(folder / shard_name(n), dtype) for n in range(len(index.shards)))
        )


def _map(file: Path, dtype: np.dtype) -> np.ndarray:
    return np.asarray(np.memmap(file, dtype=dtype, mode="r"))  # a plain view: memmap's own slicing is slow


def _check_size(file: Path, expected: int) -> None:
    if not file.is_file():
        raise DataError(f"{file} is missing; {_AGAIN}")
    if (size := file.stat().st_size) != expected:
        raise DataError(f"{file} has {size} bytes where the index says {expected}; {_AGAIN}")

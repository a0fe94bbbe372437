"""Datasets of the Hugging Face hub as documents, streamed: nothing is downloaded that is not read.

A dataset is written `hf:NAME` or `hf:NAME:CONFIG`. Knows nothing of local files.
"""

import functools
from collections.abc import Iterator
from typing import Any

from dadlm.errors import DataError
from dadlm.tokens.pieces import Piece, whole
from dadlm.tokens.records import field_of

_PREFIX = "hf:"


def is_dataset(source: str) -> bool:
    return source.startswith(_PREFIX)


def read(source: str, text_field: str, split: str) -> Iterator[Piece]:
    """The documents of one split in order, of the very revision that `describe` names."""
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"{source}: this needs datasets: pip install 'dadlm[train]'") from error
    name, config = _parts(source)
    with_revision = functools.partial(datasets.load_dataset, name, config, revision=_revision(name))
    try:
        rows = iter(with_revision(split=split, streaming=True))
    except Exception as error:  # a dozen types from four libraries: unknown name, config or split, no network
        raise _unreachable(source, error) from error
    for number, row in enumerate(_guarded(rows, source), 1):
        document = field_of(row, text_field, f"{source}, split {split}, row {number}")
        for text, ends in whole(document) if document else ():
            yield Piece(text, ends)


def describe(source: str, split: str) -> dict[str, object]:
    """What identifies the text: name, configuration, split, and the commit of the dataset's repository."""
    name, config = _parts(source)
    return {"dataset": name, "config": config, "split": split, "revision": _revision(name)}


@functools.cache
def _revision(name: str) -> str | None:
    """The commit now current; asked once, so that what is named and what is read are the same."""
    import huggingface_hub  # here, because it takes a second to import

    try:
        return huggingface_hub.HfApi().dataset_info(name).sha
    except Exception as error:  # as above
        raise _unreachable(_PREFIX + name, error) from error


def _guarded(rows: Iterator[Any], source: str) -> Iterator[Any]:
    try:
        yield from rows
    except Exception as error:  # the network may fail between any two rows
        raise _unreachable(source, error) from error


def _parts(source: str) -> tuple[str, str | None]:
    name, _, config = source.removeprefix(_PREFIX).partition(":")
    if not name:
        raise DataError(f"{source!r} names no dataset; expected hf:NAME or hf:NAME:CONFIG")
    return name, config or None


def _unreachable(source: str, error: Exception) -> DataError:
    reason = str(error).strip().split("\n")[0]
    return DataError(f"{source} cannot be read from the Hugging Face hub ({type(error).__name__}: {reason})")

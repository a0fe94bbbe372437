"""Datasets of the Hugging Face hub as documents (`hf:NAME`, `hf:NAME:CONFIG`), streamed."""

import functools
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dadlm.errors import DataError
from dadlm.tokens.pieces import Piece, marked
from dadlm.tokens.readers import field_of

_PREFIX = "hf:"
_EVERY = 1000  # rows between two anchors: taking one costs as much as reading a row


def is_dataset(source: str) -> bool:
    return source.startswith(_PREFIX)


def read(source: str, text_field: str, split: str, anchor: Any = None) -> Iterator[Piece]:
    """The documents of one split, in order; files before the anchor are not downloaded again."""
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"{source}: this needs datasets: pip install 'dadlm[train]'") from error
    name, config = _parts(source)
    revision = _revision(name)
    with _from_hub(source):
        dataset = datasets.load_dataset(name, config, revision=revision, split=split, streaming=True)
        if anchor is not None:
            dataset.load_state_dict(anchor["state"])
        rows = iter(dataset)
    begin = anchor["row"] if anchor else 0
    for number in itertools.count(begin):
        if number % _EVERY == 0 and number > begin:  # before its first row a dataset has no position
            anchor = {"row": number, "state": dataset.state_dict()}
        with _from_hub(source):  # the network may fail between any two rows
            row: Any = next(rows, None)
        if row is None:
            return
        document = field_of(row, text_field, f"{source}, split {split}, row {number + 1}")
        for text, ends in marked(document):
            yield Piece(text, ends, anchor=anchor)


def describe(source: str, split: str) -> dict[str, object]:
    """What identifies the text: name, configuration, split, and commit of the dataset's repository."""
    name, config = _parts(source)
    return {"dataset": name, "config": config, "split": split, "revision": _revision(name)}


@functools.cache
def _revision(name: str) -> str | None:
    """The current commit, asked once, so that the revision described is the one that is read."""
    import huggingface_hub  # here, because it takes a second to import

    with _from_hub(_PREFIX + name):
        return huggingface_hub.HfApi().dataset_info(name).sha


def _parts(source: str) -> tuple[str, str | None]:
    name, _, config = source.removeprefix(_PREFIX).partition(":")
    if not name:
        raise DataError(f"{source!r} names no dataset; expected hf:NAME or hf:NAME:CONFIG")
    return name, config or None


@contextmanager
def _from_hub(source: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a dozen types from four libraries: unknown name, config or split, no network
        reason = str(error).strip().split("\n")[0]
        message = f"{source} cannot be read from the Hugging Face hub ({type(error).__name__}: {reason})"
        raise DataError(message) from error

"""Long documents in bounded pieces, so that text of any length is processed in constant memory.

Text is split before a space (else a newline) that follows a visible character. GPT-2's rule for words only
looks ahead and lets a word begin, never end, with a space: it splits there in any case, so the ids do not
change. Only where `LIMIT` characters have no such place is the text split at `LIMIT` itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

LIMIT = 1 << 16
"""Most characters of a piece: boundaries are rare, yet cores can share one long document."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a document; the pieces up to one that `ends` join to exactly the document."""

    text: str
    ends: bool
    """Whether the document ends here."""
    read: int = 0
    """Bytes of the source consumed so far, as stored on disk; 0 where unknown."""
    anchor: Any = None
    """A place at or before this piece where reading can resume, as JSON: the number of a file, or the state
    of a dataset's reader."""


def split_text(text: str) -> list[str]:
    """Stretches of at most `LIMIT` characters; the last one is never empty unless the text is.

    A boundary depends only on what lies left of it, so text that grows at its end keeps its boundaries.
    """
    stretches, start = [], 0
    while len(text) - start > LIMIT:
        stop = _boundary(text, start)
        stretches.append(text[start:stop])
        start = stop
    return [*stretches, text[start:]]


def marked(document: str) -> Iterator[tuple[str, bool]]:
    """The stretches of a whole document, each with whether the document ends there; none if it is empty."""
    *before, last = split_text(document)
    yield from ((stretch, False) for stretch in before)
    if last:
        yield last, True


def _boundary(text: str, start: int) -> int:
    for space in " \n":  # newlines second: some newer tokenizers join them to the punctuation before them
        stop = text.rfind(space, start + 1, start + LIMIT + 1)
        while stop > 0 and text[stop - 1].isspace():
            stop = text.rfind(space, start + 1, stop)
        if stop > 0:
            return stop
    return start + LIMIT

"""Tokens → text for a reader, piece by piece; what was sent never has to be taken back.

An incomplete character at the end, and what may become a stop text, are held back until they are certain.
The text ends where the first stop text begins, wherever the tokens' boundaries are.
"""

from collections.abc import Sequence

from dadlm.tokens.tokenizer import Tokenizer

_INCOMPLETE = "\ufffd"  # what decoders write for the bytes of an incomplete character
_WINDOW, _OVERLAP = 64, 16
# Characters held back for bytes that never become one. 3 would not be enough: for one open byte, decoders
# with byte fallback doubt all bytes before it, back to the last clean place in the window.
_LONGEST_INCOMPLETE = 2 * _WINDOW


def text_of(tokenizer: Tokenizer | None, ids: Sequence[int]) -> str:
    """Tokens as text; empty without a tokenizer."""
    return "" if tokenizer is None else tokenizer.decode(ids)


class TextStream:
    """The text of one request as it grows."""

    def __init__(self, tokenizer: Tokenizer | None, stop: Sequence[str] = ()) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._window: list[int] = []  # the last tokens: a piece of text depends on those before it
        self._given = 0  # characters of the window's text that were passed on
        self._held = ""  # passed on, but perhaps part of a stop text

    @property
    def undecided(self) -> str:
        """The end of the text, which may still become another character; meaningless with stop texts."""
        return text_of(self._tokenizer, self._window)[self._given :]

    def add(self, tokens: Sequence[int]) -> tuple[str, int | None]:
        """Text that is now certain, and how many tokens it took to reach a stop text (None: not reached)."""
        if not self._stop:
            return self._decoded(tokens), None
        pieces = []
        for count, token in enumerate(tokens, 1):
            piece, stopped = self._before_stop(self._decoded([token]))
            pieces.append(piece)
            if stopped:
                self._window, self._given = [], 0  # nothing follows, nor half a character
                return "".join(pieces), count
        return "".join(pieces), None

    def end(self) -> tuple[str, bool]:
        """The rest, once no more tokens come, and whether it reached a stop text."""
        rest = text_of(self._tokenizer, self._window)[self._given :]
        self._window, self._given = [], 0
        return self._before_stop(rest, last=True)

    def _decoded(self, tokens: Sequence[int]) -> str:
        window = [*self._window, *tokens]
        text = text_of(self._tokenizer, window)
        if len(tokens) > 1 and text.endswith(_INCOMPLETE):
            # Whole characters inside a block are certain even if its end cuts one in two.
            return "".join(self._decoded([token]) for token in tokens)
        self._window = window
        open_end = min(_LONGEST_INCOMPLETE, len(text) - len(text.rstrip(_INCOMPLETE)))
        certain = len(text) - open_end
        new, self._given = text[self._given : certain], max(self._given, certain)
        if len(self._window) > _WINDOW and not open_end:  # or every token of a long text would take longer
            for some in range(_OVERLAP, _OVERLAP + 4):  # not from the middle of a character
                if text.endswith(rest := text_of(self._tokenizer, self._window[-some:])):
                    self._window, self._given = self._window[-some:], len(rest)
                    break
        return new

    def _before_stop(self, new: str, last: bool = False) -> tuple[str, bool]:
        held = self._held + new
        found = min((at for stop in self._stop if (at := held.find(stop)) >= 0), default=len(held) + 1)
        # `maybe`: where the longest end of `held` begins that is the beginning of a stop text.
        longest = 0 if last else max(map(len, self._stop), default=1) - 1
        places = range(max(0, len(held) - longest), len(held))
        maybe = next((at for at in places if any(s.startswith(held[at:]) for s in self._stop)), len(held))
        end, stopped = min(found, maybe), found <= maybe
        self._held = "" if stopped else held[end:]
        return held[:end], stopped

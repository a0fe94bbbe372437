"""The words of a command line before they are parsed."""

import re

_NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?")


def numbers_last(words: list[str], most: dict[str, int]) -> list[str]:
    """Options that take several numbers, moved behind all else: the parser would take the prompt or file that
    follows them for one number more. `most` says how many each takes."""
    if "--" in words:
        return words
    rest, moved = list(words), []
    for name, count in most.items():
        while name in rest:
            at = rest.index(name)
            end = min(at + 2, len(rest))  # the first is its own whatever it is: the parser says what is wrong
            while end < min(len(rest), at + 1 + count) and _NUMBER.fullmatch(rest[end]):
                end += 1
            moved += rest[at:end]
            del rest[at:end]
    return rest + moved

"""The words of a command line before they are parsed."""

import re


def numbers_last(words: list[str], *names: str) -> list[str]:
    """Options that take several numbers, moved behind all else: the parser would take the prompt or file that
    follows them for one number more."""
    if "--" in words:
        return words
    for name in names:
        if name in words:
            at = words.index(name)
            end = at + 1
            while end < len(words) and re.fullmatch(r"-?[\d.]+(e-?\d+)?", words[end]):
                end += 1
            words = [*words[:at], *words[end:], *words[at:end]]
    return words

"""Pairs whose better side is known: how a text really goes on, against what was made of it.

Shown to a judge before its verdicts on models are believed. Knows nothing of who judges.
"""

from dataclasses import asdict
from typing import Any

import torch

from dadlm.errors import DataError
from dadlm.evaluate.intervals import wilson
from dadlm.evaluate.pairs import Pair, Pairs

REAL, PLANTED = "the real text", "what was made of it"
KINDS = {
    "shuffled": "its words in random order",
    "truncated": "its first eighth",
    "off-topic": "how another text goes on",
}
_PROMPT, _TEXT = 64, 128  # words


def plant(texts: list[str], *, count: int, seed: int = 0, source: str | None = None) -> Pairs:
    """Of the first `count` texts that are long enough, one pair of each kind; the real one is A."""
    words = [text.split() for text in texts]
    long = [some for some in words if len(some) >= _PROMPT + _TEXT][:count]
    if len(long) < 2:
        raise DataError(
            f"planted pairs need at least 2 texts of {_PROMPT + _TEXT} words or more, found {len(long)}"
        )
    real = [some[_PROMPT : _PROMPT + _TEXT] for some in long]
    generator = torch.Generator().manual_seed(seed)
    pairs = []
    for index, some in enumerate(long):
        order = torch.randperm(_TEXT, generator=generator).tolist()
        made = {
            "shuffled": [real[index][place] for place in order],
            "truncated": real[index][: _TEXT // 8],
            "off-topic": real[(index + 1) % len(real)],
        }
        for kind in KINDS:
            pairs.append(
                Pair(
                    configuration=kind,
                    index=index,
                    prompt=" ".join(some[:_PROMPT]),
                    a=" " + " ".join(real[index]),
                    b=" " + " ".join(made[kind]),
                )
            )
    return Pairs(a=REAL, b=PLANTED, pairs=tuple(pairs), source=source)


def trust(result: dict[str, Any]) -> dict[str, Any]:
    """How far a judge that was asked about planted pairs can be trusted: kind by kind, how often it was right
    (of all pairs, with Wilson's interval), wrong, and undecided."""
    rows = [
        {
            "kind": row["configuration"],
            "pairs": row["pairs"],
            "right": row["wins_a"],
            "wrong": row["wins_b"],
            "undecided": row["ties"],
            "share_right": asdict(wilson(row["wins_a"], row["pairs"])),
        }
        for row in result["rows"]
    ]
    # More right than not, and surely so, in every kind: else its verdicts on subtler differences are noise.
    return {
        "source": result["source"],
        "rows": rows,
        "trusted": all(row["share_right"]["low"] > 0.5 for row in rows),
    }


def in_words(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    lines = [
        f"Planted pairs, {row['kind']} ({KINDS[row['kind']]}): right in {row['right']} of {row['pairs']}, "
        f"wrong in {row['wrong']}, undecided in {row['undecided']}."
        for row in found["rows"]
    ]
    if found["trusted"]:
        return [*lines, "This judge tells real text from each of these; its verdicts are worth reading."]
    return [
        *lines,
        "This judge does not reliably tell real text from these: its verdicts on models are no evidence.",
    ]

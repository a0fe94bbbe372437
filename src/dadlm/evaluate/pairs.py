"""Pairs of continuations of the same prompt: of two models, or real text against a corrupted copy.

Samples are JSON Lines as `generation` writes them; two with the same configuration and index are a pair.
Planted pairs, whose better side is known, show whether a judge can be trusted.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dadlm.errors import DataError
from dadlm.evaluate.documents import read_jsonl
from dadlm.evaluate.intervals import wilson
from dadlm.evaluate.subject import NAMES, essence
from dadlm.tokens import field_of

_FIELDS = ("model", "configuration", "prompt", "text", "index")
Place = tuple[str, int]
"""Configuration and index of a sample."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One prompt and how the two models went on."""

    configuration: str
    index: int
    prompt: str
    a: str
    b: str


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """All pairs of models A and B."""

    a: str
    """Name of model A."""
    b: str
    pairs: tuple[Pair, ...]
    """Sorted by configuration and index: neither depends on the order of files or lines."""
    model_a: dict[str, Any] | None = None
    """Family, block size and scale of model A, where its samples tell."""
    model_b: dict[str, Any] | None = None
    missing: int = 0
    """Samples of either model without a partner."""
    source: str | None = None
    """The text that the prompts are from, where the samples tell."""


def read_pairs(a: str | Path, b: str | Path, model_a: str = "", model_b: str = "") -> Pairs:
    """Match the samples of file or folder `a` with those of `b`; where one holds several models, name one."""
    side_a, side_b = sides = _side(a, model_a), _side(b, model_b)
    if side_a == side_b:
        raise DataError(f"both sides are the same samples of {a}: name two models, or give a second file")
    common = sorted(side_a.keys() & side_b.keys())
    if not common:
        there = [", ".join(sorted({configuration for configuration, _ in side})) for side in sides]
        raise DataError(
            f"no sample of {a} has a partner in {b}: equal configuration and index are needed; "
            f"configurations there: {there[0]}, and {there[1]}"
        )
    firsts = [next(iter(side.values())) for side in sides]
    names = [first["model"] for first in firsts]
    if names[0] == names[1]:  # two runs of one model
        names = [f"{name} ({source})" for name, source in zip(names, (a, b), strict=True)]
    pairs = []
    for place in common:
        one, other = side_a[place], side_b[place]
        prompt = one["prompt"]
        if prompt != other["prompt"]:
            raise DataError(
                f"{one['where']} and {other['where']}: the prompts differ, so the texts cannot be compared"
            )
        texts = {"prompt": prompt, "a": one["text"], "b": other["text"]}
        pairs.append(Pair(configuration=place[0], index=place[1], **texts))
    sources = {side[place].get("source") for side in sides for place in common}
    return Pairs(
        a=names[0],
        b=names[1],
        pairs=tuple(pairs),
        model_a=_metadata(firsts[0]),
        model_b=_metadata(firsts[1]),
        missing=len(side_a.keys() ^ side_b.keys()),
        # Unknown as soon as one sample does not say.
        source=None if None in sources else " and ".join(sorted(filter(None, sources))),
    )


def _metadata(record: dict[str, Any]) -> dict[str, Any] | None:
    """What a sample says of its model; samples made by other programs may say nothing."""
    model = essence(record)
    scale = (model["context"], model["parameters"])
    known = model["family"] in tuple(NAMES) and all(isinstance(number, int) for number in scale)
    return model if known else None


def _side(source: str | Path, model: str) -> dict[Place, dict[str, Any]]:
    """The samples of one model."""
    samples = [_sample(record, where) for where, record in read_jsonl(source)]
    if not samples:
        raise DataError(f"{source} holds no samples")
    models = sorted({sample["model"] for sample in samples})
    if model not in models and (model or len(models) > 1):
        wanted = f"not of {model}" if model else "name the one to compare"
        raise DataError(f"{source} holds samples of {', '.join(models)}: {wanted}")
    model = model or models[0]
    side: dict[Place, dict[str, Any]] = {}
    for sample in samples:
        place = sample["configuration"], sample["index"]
        if sample["model"] == model and (first := side.setdefault(place, sample)) is not sample:
            raise DataError(
                f"{sample['where']}: sample {place[1]} of {place[0]} is already in {first['where']}; "
                "remove one of them"
            )
    if len({sample.get("weights") for sample in side.values()}) > 1:
        raise DataError(
            f"{source} holds samples of several models called {model} (their weights differ): "
            "remove the older files"
        )
    return side


def _sample(record: dict[str, Any], where: str) -> dict[str, Any]:
    """A checked record, with its place."""
    if missing := [name for name in _FIELDS if name not in record]:
        raise DataError(f"{where}: not a sample: no {', '.join(missing)}")
    if type(record["index"]) is not int:
        raise DataError(f"{where}: field 'index' must be a whole number, found {record['index']!r}")
    texts = [*_FIELDS[:-1], *(["source"] if record.get("source") is not None else [])]
    return record | {name: field_of(record, name, where) for name in texts} | {"where": where}


REAL, PLANTED = "the real text", "what was made of it"
PLANTED_KINDS = {
    "shuffled": "its words in random order",
    "truncated": "its first eighth",
    "off-topic": "how another text goes on",
}
_PROMPT, _TEXT = 64, 128  # words
TRUSTED = 0.9
"""Share of the pairs of every kind that a judge has to decide rightly."""


def plant(texts: list[str], *, count: int, source: str | None = None) -> Pairs:
    """Of the first `count` texts that are long enough, one pair of each kind; the real one is A."""
    words = [text.split() for text in texts]
    long = [some for some in words if len(some) >= _PROMPT + _TEXT][:count]
    if len(long) < 2:
        raise DataError(
            f"planted pairs need at least 2 texts of {_PROMPT + _TEXT} words or more, found {len(long)}"
        )
    real = [some[_PROMPT : _PROMPT + _TEXT] for some in long]
    generator = torch.Generator().manual_seed(0)
    pairs = []
    for index, some in enumerate(long):
        order = torch.randperm(_TEXT, generator=generator).tolist()
        made = {
            "shuffled": [real[index][place] for place in order],
            "truncated": real[index][: _TEXT // 8],
            "off-topic": real[(index + 1) % len(real)],
        }
        for kind in PLANTED_KINDS:
            prompt, a, b = (" ".join(part) for part in (some[:_PROMPT], real[index], made[kind]))
            pairs.append(Pair(configuration=kind, index=index, prompt=prompt, a=f" {a}", b=f" {b}"))
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
    # A judge that misses differences as plain as these cannot see smaller ones.
    return {
        "source": result["source"],
        "rows": rows,
        "trusted": all(row["right"] >= TRUSTED * row["pairs"] for row in rows),
    }


def in_words(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    lines = [
        f"Planted pairs, {row['kind']} ({PLANTED_KINDS[row['kind']]}): right in {row['right']} of "
        f"{row['pairs']}, wrong in {row['wrong']}, undecided in {row['undecided']}."
        for row in found["rows"]
    ]
    verdict = f"is right in fewer than {TRUSTED:.0%} of a kind: its verdicts on models are no evidence."
    if found["trusted"]:
        verdict = "tells real text from each of these; its verdicts are worth reading."
    return [*lines, f"This judge {verdict}"]

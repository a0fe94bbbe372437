"""What a table is about: models, text and decoding configurations, and where they differ from the paper's."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from dadlm.evaluate import paper
from dadlm.evaluate.intervals import caution
from dadlm.evaluate.report.document import Difference, Found, whole
from dadlm.evaluate.subject import NAMES

Json = Mapping[str, Any]
Key = tuple[str, paper.Infill]
"""Denoising ("FH", "T=16", "conf 0.9", "AR") and infilling."""

# How the paper's data sets are spelled in file and hub names: whole words, apart by one space.
_SPELLINGS = {
    "OpenWebText": ("openwebtext", "open web text", "owt"),
    "LM1B": ("lm1b", "billion word", "billionword"),
    "XSum": ("xsum",),
    "CNN/DailyMail": ("cnndailymail", "dailymail", "daily mail", "cnndm", "cnn dm"),
}


def block_size(model: Json) -> int | None:
    """None for families without blocks."""
    size = model.get("block_size")
    return size if model["family"] in ("bd3lm", "dadlm") and isinstance(size, int) else None


def rank(model: Json) -> tuple[int, int]:
    """The paper's order: by family, large blocks first."""
    return list(NAMES).index(model["family"]), -(block_size(model) or 0)


def labels(named: Sequence[tuple[str, Found]]) -> list[str]:
    """Names for rows: with the result's folder where a name is not unique."""
    times = Counter(name for name, _ in named)
    return [name if times[name] == 1 else f"{name} ({one.folder})" for name, one in named]


def source_of(data: Json) -> str:
    return data["source"] or "rows of unknown origin"


def rows_of(result: Json) -> str:
    """The text of a result, and how much of it was used."""
    data = result["data"]
    count = result.get("count") or data["rows"]
    return f"{source_of(data)} ({count:,} rows of {data['row_length']:,} tokens)"


def cautions(result: Json) -> list[str]:
    """The warnings beside its intervals, which draw whole documents."""
    if result.get("groups") is None:
        return caution(result.get("count") or result["data"]["rows"])
    return caution(result["groups"], "documents (or runs of rows of one)")


def grouped(found: Iterable[Found], key: Callable[[Json], Sequence[Any]]) -> list[list[Found]]:
    """Results that belong into one table."""

    def words(one: Found) -> list[str]:
        return list(map(str, key(one.result)))

    return [list(group) for _, group in groupby(sorted(found, key=words), words)]


def by_data(found: Iterable[Found]) -> list[list[Found]]:
    """Results on the same rows."""
    names = ("source", "fingerprint", "rows", "row_length", "pairs")
    return grouped(found, lambda one: [*(one["data"].get(name) for name in names), one.get("count")])


def key_of(row: Json) -> Key:
    """The configuration of a row: by its label, which has all its settings."""
    if row.get("configuration"):
        return read_key(row["configuration"])
    infill = row["infill"]
    return row["denoising"], (int(infill[0]), float(infill[1])) if infill else None


def read_key(label: str) -> Key:
    """`T=8 infill 2 0.5`. A label that says anything else stays whole: the paper has no such row."""
    match = re.fullmatch(r"(.*\S) infill (\d+) ([\d.]+)", label)
    return (match[1], (int(match[2]), float(match[3]))) if match else (label, None)


def rank_key(key: Key) -> tuple[Any, ...]:
    """The paper's order: first-hitting, then from many steps to few, random before dilated; short gaps
    first."""
    denoising, infill = key
    steps = re.fullmatch(r"([TD])=(\d+)", denoising)
    order = (0, 0) if denoising == "FH" else ("_TD".index(steps[1]), -int(steps[2])) if steps else (3, 0)
    return *order, denoising, infill is not None, *((infill[0], -infill[1]) if infill else ())


def write_key(key: Key) -> str:
    """As in the paper's appendix, where r is left out if it is 0."""
    denoising, infill = key
    if infill is None:
        return denoising
    k, r = infill
    return f"{denoising}, k={k}" + (f", r={r:g}" if r else "")


def paper_row(block_size: int | None, key: Key) -> paper.Generation | None:
    rows = paper.GENERATION.get(block_size or 0, ())
    return next((row for row in rows if (row.denoising, row.infill) == key), None)


def known_as(source: str | None, names: Iterable[str]) -> str | None:
    """Which of the paper's data sets a source seems to be, by its name."""
    words = f" {' '.join(re.findall('[a-z0-9]+', (source or '').lower()))} "
    return next((name for name in names if any(f" {word} " in words for word in _SPELLINGS[name])), None)


def models_differ(models: Sequence[Json], sets: Sequence[str] = ("OpenWebText",)) -> Iterator[Difference]:
    """Size, graph and context; the paper's context depends on the data set."""
    sizes = [model["parameters"] for model in models]
    if not all(0.9 < size / paper.PARAMETERS < 1.1 for size in sizes):  # the graph adds 2%
        yield "parameters", _span(sizes, _parameters), f"about {_parameters(paper.PARAMETERS)}"
    contexts = [int(model["context"]) for model in models]
    if not set(contexts) <= {paper.CONTEXT[name] for name in sets}:
        yield "context", _span(contexts, whole), " and ".join(whole(paper.CONTEXT[name]) for name in sets)
    for name, theirs in (("candidates", paper.CANDIDATES), ("expand_at", paper.EXPAND_AT)):
        values = [int(model[name]) for model in models if name in model]
        if set(values) - {theirs}:
            yield name, _span(values, whole), theirs


def device_differs(device: str) -> Difference:
    return "device", paper.DEVICE if "A800" in device else device, paper.DEVICE


def _parameters(count: float) -> str:
    """The size of a model: 10.6M."""
    return f"{count / 1e3:.1f}k" if count < 1e6 else f"{count / 1e6:.1f}M".replace(".0M", "M")


def _span(values: Sequence[int], write: Callable[[float], str]) -> str:
    return " to ".join(dict.fromkeys(write(end) for end in (min(values), max(values))))

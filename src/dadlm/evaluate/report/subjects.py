"""What a table is about: models, text and decoding configurations, and where they differ from the paper's."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from dadlm.evaluate import paper
from dadlm.evaluate.intervals import caution
from dadlm.evaluate.report.document import Column, Difference, Found, Row, Table, whole
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


def family_name(model: Json) -> str:
    return NAMES[model["family"]]


def block_size(model: Json) -> int | None:
    """None for families without blocks."""
    size = model.get("block_size")
    return size if model["family"] in ("bd3lm", "dadlm") and isinstance(size, int) else None


def rank(model: Json) -> tuple[int, int]:
    """The paper's order: by family, large blocks first."""
    return list(NAMES).index(model["family"]), -(block_size(model) or 0)


def labels(named: Sequence[tuple[str, str]]) -> list[str]:
    """Names for rows from (name, folder): with the folder where a name is not unique."""
    times = Counter(name for name, _ in named)
    return [name if times[name] == 1 else f"{name} ({folder})" for name, folder in named]


def source_of(data: Json) -> str:
    return data["source"] or "rows of unknown origin"


def count_of(result: Json) -> int:
    """Rows that were used."""
    return result.get("count") or result["data"]["rows"]


def cautions(result: Json) -> list[str]:
    """What has to be said beside its intervals, which draw whole documents."""
    groups = result.get("groups")
    return (
        caution(count_of(result)) if groups is None else caution(groups, "documents (or runs of rows of one)")
    )


def rows_of(result: Json) -> str:
    """The text of a result, and how much of it was used."""
    data = result["data"]
    return f"{source_of(data)} ({count_of(result):,} rows of {data['row_length']:,} tokens)"


def by_data(found: Iterable[Found]) -> Iterator[list[Found]]:
    """Results on the same rows belong into one table."""

    def key(one: Found) -> tuple[str, ...]:
        data, names = one.result["data"], ("source", "fingerprint", "rows", "row_length", "pairs")
        return *(str(data.get(name)) for name in names), str(one.result.get("count"))

    for _, group in groupby(sorted(found, key=key), key):
        yield list(group)


def table(
    found: Sequence[Found], rows: Iterable[Row], columns: Iterable[Column | str], **fields: Any
) -> Table:
    """A table with where it comes from: the files, and the commands that made them where they say so."""
    commands = dict.fromkeys(str(one.result["command"]) for one in found if one.result.get("command"))
    return Table(
        columns=tuple(Column(one) if isinstance(one, str) else one for one in columns),
        rows=tuple(rows),
        files=tuple(str(one.file) for one in found),
        commands=tuple(commands),
        **fields,
    )


def key_of(row: Mapping[str, Any]) -> Key:
    """The configuration of a row: by its label, which has all its settings."""
    if row.get("configuration"):
        return read_key(row["configuration"])
    infill = row["infill"]
    return row["denoising"], (int(infill[0]), float(infill[1])) if infill else None


def read_key(label: str) -> Key:
    """`T=8 infill 2 0.5`. Whatever else a label says stays in it: then the paper has no such row."""
    match = re.fullmatch(r"(.*\S) infill (\d+) ([\d.]+)", label)
    return (match[1], (int(match[2]), float(match[3]))) if match else (label, None)


def rank_key(key: Key) -> tuple[Any, ...]:
    """The paper's order: first-hitting, then from many steps to few; short gaps first."""
    denoising, infill = key
    steps = re.fullmatch(r"T=(\d+)", denoising)
    order = (0, 0) if denoising == "FH" else (1, -int(steps[1])) if steps else (2, 0)
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


def paper_name(family: str, name: str) -> str:
    """Which of the paper's models one stands beside: one called 300K beside BD3LM of twice the training."""
    return "BD3LM-300K" if family == "bd3lm" and "300k" in name.lower() else NAMES[family]


def paper_mauve(family: str, name: str, block_size: int | None, key: Key) -> float | None:
    row = paper_row(block_size, key)
    if row is None or family not in ("bd3lm", "dadlm"):
        return None
    if block_size == 16 and paper_name(family, name) == "BD3LM-300K":
        return paper.BD3LM_300K_MAUVE[paper.GENERATION[16].index(row)]
    return row.bd3lm_mauve if family == "bd3lm" else row.dadlm_mauve


def paper_tpf(family: str, block_size: int | None, key: Key) -> float | None:
    row = paper_row(block_size, key)
    if row is None or family not in ("bd3lm", "dadlm"):
        return None
    return row.bd3lm_tpf if family == "bd3lm" else row.dadlm_tpf


def known_as(source: str | None, names: Iterable[str]) -> str | None:
    """Which of the paper's data sets a source seems to be, by its name."""
    words = f" {' '.join(re.findall('[a-z0-9]+', (source or '').lower()))} "
    return next((name for name in names if any(f" {word} " in words for word in _SPELLINGS[name])), None)


def data_beside(ours: str, *names: str) -> Difference:
    """Always shown: no name of a file proves that it holds the paper's text, or which part of it."""
    return Difference("data", ours, " and ".join(names))


def models_differ(models: Sequence[Json], sets: Sequence[str] = ("OpenWebText",)) -> Iterator[Difference]:
    """Size, graph and context; the paper's context depends on the data set."""
    sizes = [model["parameters"] for model in models]
    if not all(0.9 < size / paper.PARAMETERS < 1.1 for size in sizes):  # the graph adds 2%
        theirs = f"about {parameters(paper.PARAMETERS)}"
        yield Difference("parameters", _span(sizes, parameters), theirs)
    contexts = [int(model["context"]) for model in models]
    if not set(contexts) <= {paper.CONTEXT[name] for name in sets}:
        theirs = " and ".join(whole(paper.CONTEXT[name]) for name in sets)
        yield Difference("context", _span(contexts, whole), theirs)
    for name, theirs in (("candidates", paper.CANDIDATES), ("expand_at", paper.EXPAND_AT)):
        values = [int(model[name]) for model in models if name in model]
        if set(values) - {theirs}:
            yield Difference(name, _span(values, whole), whole(theirs))


def value_differs(what: str, ours: int | None, theirs: int) -> Iterator[Difference]:
    """None: the result does not say."""
    if ours != theirs:
        yield Difference(what, "unknown" if ours is None else whole(ours), whole(theirs))


def parameters(count: float) -> str:
    """The size of a model: 10.6M."""
    if count < 1e6:
        return f"{count / 1e3:.1f}k"
    return f"{count / 1e6:.1f}M".replace(".0M", "M")


def _span(values: Sequence[int], write: Callable[[float], str]) -> str:
    return " to ".join(dict.fromkeys(write(end) for end in (min(values), max(values))))

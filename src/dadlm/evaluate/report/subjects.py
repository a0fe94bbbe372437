"""Which models and which text a table is about: their names, their order, the files they come from."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from dadlm.evaluate.intervals import caution
from dadlm.evaluate.report.document import Row, Table
from dadlm.evaluate.report.gather import Found
from dadlm.evaluate.subject import NAMES

Facts = Mapping[str, Any]


def family_name(model: Facts) -> str:
    return NAMES[model["family"]]


def block_size(model: Facts) -> int | None:
    """None for families without blocks."""
    size = model.get("block_size")
    return size if model["family"] in ("bd3lm", "dadlm") and isinstance(size, int) else None


def rank(model: Facts) -> tuple[int, int]:
    """The paper's order: by family, large blocks first."""
    return list(NAMES).index(model["family"]), -(block_size(model) or 0)


def labels(named: Sequence[tuple[str, str]]) -> list[str]:
    """Names for rows from (name, folder): the folder is told where a name alone would mean two things."""
    times = Counter(name for name, _ in named)
    return [name if times[name] == 1 else f"{name} ({folder})" for name, folder in named]


def source_of(data: Facts) -> str:
    return data["source"] or "rows of unknown origin"


def count_of(result: Facts) -> int:
    """Rows that were used."""
    return result.get("count") or result["data"]["rows"]


def cautions(result: Facts) -> list[str]:
    """What has to be said beside its intervals, which draw whole documents."""
    groups = result.get("groups")
    return (
        caution(count_of(result)) if groups is None else caution(groups, "documents (or runs of rows of one)")
    )


def rows_of(result: Facts) -> str:
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


def table(found: Sequence[Found], rows: Iterable[Row], **fields: Any) -> Table:
    """A table with where it comes from: the files, and the commands that made them where they say so."""
    commands = dict.fromkeys(str(one.result["command"]) for one in found if one.result.get("command"))
    files = tuple(str(one.file) for one in found)
    return Table(rows=tuple(rows), files=files, commands=tuple(commands), **fields)

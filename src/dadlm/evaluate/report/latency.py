"""The paper's table of latency per denoising step and of memory."""

from collections.abc import Iterator
from itertools import groupby

from dadlm.evaluate import paper
from dadlm.evaluate.report.document import (
    Cell,
    Column,
    Content,
    Difference,
    Found,
    Section,
    Table,
    number,
    ruled,
)
from dadlm.evaluate.report.subjects import Json, block_size, labels, models_differ, rank, table, value_differs

_PROTOCOL = ("device", "batch_size", "prompt_tokens", "steps", "warmup")
_PAPER = {
    "batch_size": paper.BATCH_SIZE,
    "prompt_tokens": paper.PROMPT_TOKENS,
    "steps": paper.STEPS,
    "warmup": paper.WARMUP,
}
_MEMORY = ("start", "end", "peak")
_MIB = "Memory, MiB"


def section(found: list[Found]) -> Section:
    def key(one: Found) -> tuple[str, ...]:
        return tuple(str(one.result[name]) for name in _PROTOCOL)

    groups = [list(group) for _, group in groupby(sorted(found, key=key), key)]
    return Section(
        anchor="latency",
        title="Latency and memory",
        about="Time of one complete denoising update: network, sampling, remasking. First-hitting, sampled "
        "paths, no infilling. Memory before prefill, after generation and at its peak.",
        parts=tuple(map(_table, groups)),
        short=tuple(line for group in groups for one in group for line in _sentences(one.result)),
    )


def _table(group: list[Found]) -> Table:
    rows = [(row, one) for one in group for row in one.result["rows"]]
    rows.sort(key=lambda pair: rank(pair[0]["model"]))
    names = labels([(row["model"]["name"], one.folder) for row, one in rows])
    result = group[0].result
    columns = ["Model", "Block size"]
    for group_name, ours in (("Latency, ms ↓", "median [min, max]"), ("Ratio to BD3LM ↓", "ours")):
        columns += [Column(ours, group_name), Column("paper", group_name, paper=True)]
    for name in _MEMORY:
        columns += [Column(name, _MIB), Column(f"{name}, paper", _MIB, paper=True)]
    return table(
        group,
        ruled(
            (row["model"]["family"], (name, *_cells(row, _paper_row(row["model"], one.result))))
            for (row, one), name in zip(rows, names, strict=True)
        ),
        caption=f"Latency per step ↓ and memory on {result['device']}, batch size {result['batch_size']}, "
        f"{result['steps']} steps after {result['warmup']} for warming up.",
        columns=tuple(columns),
        differences=tuple(_differences(group)),
        notes=tuple(
            dict.fromkeys(f"Memory: {kind}." for one in group if (kind := one.result.get("memory_kind")))
        ),
    )


def _cells(row: Json, theirs: paper.Latency | None) -> Iterator[Content]:
    yield number(block_size(row["model"]), 0)
    yield Cell(number(row["ms_median"]), f"[{number(row['ms_min'])}, {number(row['ms_max'])}]")
    yield number(theirs and theirs.ms)
    yield number(row["ratio_to_bd3lm"], 3)
    yield number(_paper_ratio(row["model"], theirs), 3)
    for name in _MEMORY:
        yield number(row["memory_mib"][name], 0)
        yield number(theirs and getattr(theirs, name), 0)


def _differences(group: list[Found]) -> Iterator[Difference]:
    result = group[0].result
    if "A800" not in result["device"]:
        yield Difference("device", result["device"], paper.DEVICE)
    yield from models_differ([row["model"] for one in group for row in one.result["rows"]])
    for name, theirs in _PAPER.items():
        yield from value_differs(name.replace("_", " "), result[name], theirs)


def _paper_row(model: Json, result: Json) -> paper.Latency | None:
    """What the paper has for such a model, unless it was decoded in another way."""
    if result.get("settings", {}).get(model["name"]):
        return None
    return paper.LATENCY.get((model["family"], block_size(model) or 0))


def _paper_ratio(model: Json, theirs: paper.Latency | None) -> float | None:
    return theirs and theirs.ms / paper.LATENCY["bd3lm", block_size(model) or 0].ms


def _sentences(result: Json) -> Iterator[str]:
    for row in result["rows"]:
        model, ratio = row["model"], row["ratio_to_bd3lm"]
        if model["family"] == "dadlm" and ratio is not None:
            theirs = _paper_ratio(model, _paper_row(model, result))
            beside = f" (paper {number(theirs, 3)})" if theirs else ""
            where = f"on {result['device']} at batch {result['batch_size']}"
            yield f"A step of {model['name']} takes {number(ratio, 3)} times BD3LM's {where}{beside}."

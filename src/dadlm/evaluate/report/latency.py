"""The paper's table of latency per denoising step and of memory."""

from collections.abc import Iterator
from itertools import groupby

from dadlm.evaluate import paper
from dadlm.evaluate.report.differences import models_differ, value_differs
from dadlm.evaluate.report.document import Cell, Column, Difference, Row, Section, Table, number, plain
from dadlm.evaluate.report.gather import Found
from dadlm.evaluate.report.subjects import (
    Facts,
    block_size,
    labels,
    rank,
    table,
)

_PROTOCOL = ("device", "batch_size", "prompt_tokens", "steps", "warmup")
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
        parts=tuple(_table(group) for group in groups),
        short=tuple(_sentences(groups)),
    )


def _table(group: list[Found]) -> Table:
    measured = sorted(
        ((row, one) for one in group for row in one.result["rows"]),
        key=lambda pair: rank(pair[0]["model"]),
    )
    names = labels([(row["model"]["name"], one.folder) for row, one in measured])
    rows, family = [], None
    for (row, one), name in zip(measured, names, strict=True):
        rows.append(
            Row(
                (Cell(name), *_cells(row, _paper_row(row["model"], one))),
                rule=row["model"]["family"] != family,
            )
        )
        family = row["model"]["family"]
    result = group[0].result
    return table(
        group,
        rows,
        caption=f"Latency per step ↓ and memory on {result['device']}, batch size {result['batch_size']}, "
        f"{result['steps']} steps after {result['warmup']} for warming up.",
        columns=(
            Column("Model"),
            Column("Block size"),
            Column("median [min, max]", "Latency, ms ↓"),
            Column("paper", "Latency, ms ↓", paper=True),
            Column("ours", "Ratio to BD3LM ↓"),
            Column("paper", "Ratio to BD3LM ↓", paper=True),
            *(
                column
                for name in _MEMORY
                for column in (Column(name, _MIB), Column(f"{name}, paper", _MIB, paper=True))
            ),
        ),
        differences=tuple(_differences(group)),
        notes=tuple(
            dict.fromkeys(f"Memory: {kind}." for one in group if (kind := one.result.get("memory_kind")))
        ),
    )


def _cells(row: Facts, theirs: paper.Latency | None) -> Iterator[Cell]:
    yield plain(block_size(row["model"]), 0)
    yield Cell(number(row["ms_median"]), f"[{number(row['ms_min'])}, {number(row['ms_max'])}]")
    yield plain(theirs and theirs.ms)
    yield plain(row["ratio_to_bd3lm"], 3)
    yield plain(_paper_ratio(row["model"], theirs), 3)
    for name in _MEMORY:
        yield plain(row["memory_mib"][name], 0)
        yield plain(theirs and getattr(theirs, name), 0)


def _differences(group: list[Found]) -> Iterator[Difference]:
    result = group[0].result
    if "A800" not in result["device"]:
        yield Difference(what="device", ours=result["device"], paper=paper.DEVICE)
    yield from models_differ([row["model"] for one in group for row in one.result["rows"]])
    for name, theirs in (
        ("batch_size", paper.BATCH_SIZE),
        ("prompt_tokens", paper.PROMPT_TOKENS),
        ("steps", paper.STEPS),
        ("warmup", paper.WARMUP),
    ):
        yield from value_differs(name.replace("_", " "), result[name], theirs)


def _paper_row(model: Facts, one: Found) -> paper.Latency | None:
    """What the paper has for such a model, unless it decoded in another way than the paper's."""
    if one.result.get("settings", {}).get(model["name"]):
        return None
    return paper.LATENCY.get((model["family"], block_size(model) or 0))


def _paper_ratio(model: Facts, theirs: paper.Latency | None) -> float | None:
    return theirs and theirs.ms / paper.LATENCY["bd3lm", block_size(model) or 0].ms


def _sentences(groups: list[list[Found]]) -> Iterator[str]:
    for group in groups:
        for row, one in ((row, found) for found in group for row in found.result["rows"]):
            model, ratio = row["model"], row["ratio_to_bd3lm"]
            if model["family"] == "dadlm" and ratio is not None:
                theirs = _paper_ratio(model, _paper_row(model, one))
                told = f" (paper {number(theirs, 3)})" if theirs else ""
                device = group[0].result["device"]
                where = f"on {device} at batch {group[0].result['batch_size']}"
                yield f"A step of {model['name']} takes {number(ratio, 3)} times BD3LM's {where}{told}."

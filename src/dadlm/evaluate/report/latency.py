"""The paper's table of latency per denoising step and of memory."""

from collections.abc import Iterator

from dadlm.evaluate import paper
from dadlm.evaluate.report import document as doc
from dadlm.evaluate.report import subjects
from dadlm.evaluate.report.document import Column, Content, Found, number
from dadlm.evaluate.report.subjects import Json, block_size

_PAPER = {
    "batch_size": paper.BATCH_SIZE,
    "prompt_tokens": paper.PROMPT_TOKENS,
    "steps": paper.STEPS,
    "warmup": paper.WARMUP,
}
_MEMORY = ("start", "end", "peak")
_COLUMNS = [
    ("Latency, ms ↓", "median [min, max]", "paper"),
    ("Ratio to BD3LM ↓", "ours", "paper"),
    *(("Memory, MiB", name, f"{name}, paper") for name in _MEMORY),
]


def section(found: list[Found]) -> doc.Parts:
    groups = subjects.grouped(found, lambda result: [result[name] for name in ("device", *_PAPER)])
    sentences = (line for group in groups for one in group for line in _sentences(one.result))
    return list(map(_table, groups)), list(sentences)


def _table(group: list[Found]) -> doc.Table:
    rows = [(row, one) for one in group for row in one.result["rows"]]
    rows.sort(key=lambda pair: subjects.rank(pair[0]["model"]))
    names = subjects.labels([(row["model"]["name"], one) for row, one in rows])
    result = group[0].result
    columns: list[Column | str] = ["Model", "Block size"]
    for name, ours, theirs in _COLUMNS:
        columns += [Column(ours, name), Column(theirs, name, paper=True)]
    kinds = [one.result["memory_kind"] for one in group if one.result.get("memory_kind")]
    return doc.Table(
        group,
        f"Latency per step ↓ and memory on {result['device']}, batch size {result['batch_size']}, "
        f"{result['steps']} steps after {result['warmup']} for warming up.",
        columns,
        doc.ruled(
            (row["model"]["family"], [name, *_cells(row, _paper_row(row["model"], one.result))])
            for (row, one), name in zip(rows, names, strict=True)
        ),
        differences=[
            subjects.device_differs(result["device"]),
            *subjects.models_differ([row["model"] for row, _ in rows]),
            *((name.replace("_", " "), result[name], theirs) for name, theirs in _PAPER.items()),
        ],
        notes=dict.fromkeys(
            [*(line for one in group for line in one.result.get("warnings", ()))]
            + [f"Memory: {kind}." for kind in kinds]
        ),
    )


def _cells(row: Json, theirs: paper.Latency | None) -> Iterator[Content]:
    yield number(block_size(row["model"]), 0)
    yield doc.Cell(number(row["ms_median"]), f"[{number(row['ms_min'])}, {number(row['ms_max'])}]")
    yield number(theirs and theirs.ms)
    yield number(row["ratio_to_bd3lm"], 3)
    yield number(_paper_ratio(row["model"], theirs), 3)
    for name in _MEMORY:
        yield number(row["memory_mib"][name], 0)
        yield number(theirs and getattr(theirs, name), 0)


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

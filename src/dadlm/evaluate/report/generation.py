"""Open-ended generation: the paper's figure, its tables by block size, and further measures."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dadlm.errors import DadlmError
from dadlm.evaluate.generation import ENOUGH
from dadlm.evaluate.pareto import draw_pareto
from dadlm.evaluate.report.document import (
    Column,
    Content,
    Figure,
    Found,
    Section,
    Table,
    apart,
    measured,
    number,
    ruled,
)
from dadlm.evaluate.report.grid import block_sizes, grid_notes, grid_of, grid_table, timing
from dadlm.evaluate.report.subjects import Json, key_of, rank, table, write_key

_LARGEST = 5_000_000  # bytes of a figure; a larger one is left out


def section(found: list[Found]) -> Section:
    parts: list[Table | Figure] = []
    short: list[str] = []
    for one in found:
        where = f" ({one.folder})" if len(found) > 1 else ""
        parts += _figure(one, where)
        for size in block_sizes(one.result):
            parts.append(grid_table(one, size, where))
            short += _sentences(one.result, size, where)
        parts.append(measures_table(one, where))
    return Section(
        anchor="generation",
        title="Open-ended generation",
        about="Completions of prompts from the validation text over a grid of decoding settings. TPF: tokens "
        "per forward pass; adjusted: times BD3LM's latency per step over the model's own. FH: first-hitting, "
        "one token per pass. T: denoising steps per block. k, r: gaps of up to k masked tokens are filled at "
        "once when a share r of the block is fixed.",
        parts=tuple(parts),
        short=tuple(short),
    )


def _figure(one: Found, where: str) -> Iterator[Figure]:
    """The figure that lies beside the result, else a new one; none where it is too large or not to be had."""
    caption = f"Quality against tokens per forward pass, one panel for each block size{where}."
    beside = one.file.parent / "pareto.svg"
    if beside.is_file():
        if beside.stat().st_size <= _LARGEST:
            yield Figure(svg=beside.read_bytes(), caption=caption)
        return
    with TemporaryDirectory() as folder:
        try:
            draw_pareto(one.result, Path(folder) / "pareto")
        except DadlmError:  # no matplotlib, or nothing was measured that could be drawn
            return
        yield Figure(svg=(Path(folder) / "pareto.svg").read_bytes(), caption=caption)


def _sentences(result: Json, size: int | None, where: str) -> Iterator[str]:
    """DA-DLM against BD3LM in MAUVE and judge perplexity, over the configurations that both have."""
    grid = grid_of(result, size)
    families = {name: row["family"] for rows in grid.values() for name, row in rows.items()}
    few = " So few samples mean little." if result["samples"] < ENOUGH else ""
    ours, theirs = ([name for name in families if families[name] == one] for one in ("dadlm", "bd3lm"))
    qualities = {"mauve": "MAUVE", "judge_perplexity": "Judge perplexity"}
    for name, other, quality in product(ours, theirs, qualities):
        both = [rows for rows in grid.values() if {name, other} <= rows.keys()]
        pairs = [(rows[name][quality], rows[other][quality]) for rows in both]
        pairs = [(one, two) for one, two in pairs if one and two]
        if quality == "judge_perplexity":  # less is better: the better one is the lower
            pairs = [(two, one) for one, two in pairs]
        if pairs:
            better = sum(one["mean"] > two["mean"] for one, two in pairs)
            clear = sum(apart(one, [two]) for one, two in pairs)
            worse = sum(apart(two, [one]) for one, two in pairs)
            yield (
                f"{qualities[quality]}{where}: {name} better than {other} in {better} of {len(pairs)} "
                f"configurations, intervals apart in {clear}; worse with intervals apart in {worse}; "
                f"{result['samples']} samples.{few}"
            )


def measures_table(one: Found, where: str) -> Table:
    result = one.result
    judged = any(row["judge_perplexity"] for row in result["rows"])
    timed = timing(result)
    ranked = sorted(result["rows"], key=lambda row: (*rank(row), row["model"]))
    rows: list[tuple[Any, tuple[Content, ...]]] = [
        (row["model"], (row["model"], write_key(key_of(row)), *_measures(row, judged, bool(timed))))
        for row in ranked
    ]
    if result.get("reference"):
        texts = _text(result["reference"], judged)
        rows.append((None, ("True text", None, *texts, *[None] * (4 if timed else 3))))
    judge = f"; perplexity under {result['judge_lm']}" if result["judge_lm"] else ""
    return table(
        [one],
        ruled(rows),
        caption=f"Further measures of the same samples{where}{judge}.",
        columns=(
            "Model",
            Column("Denoising", words=True),
            *(["Perplexity ↓"] if judged else []),
            *(Column(str(n), "Distinct n-grams", detail=True) for n in (1, 2, 3)),
            Column("Entropy, nats", detail=True),
            Column("Repeated 4-grams ↓", detail=True),
            Column("raw", "TPF ↑"),
            Column("with cache passes", "TPF ↑", detail=True),
            "Empty",
            *([f"ms per step, batch size {timed['batch_size']}"] if timed else []),
        ),
        differences=None,
        notes=tuple(grid_notes(result, False)) if not block_sizes(result) else (),
    )


def _measures(row: Json, judged: bool, timed: bool) -> Iterator[Content]:
    yield from _text(row, judged)
    yield number(row["raw_tpf"])
    yield number(row["tpf_with_cache_passes"])
    yield number(row["empty"], 0)
    if timed:
        yield number(row.get("ms_per_step"))


def _text(row: Json, judged: bool) -> tuple[Content, ...]:
    """What can be said of texts alone."""
    return (
        *([measured(row["judge_perplexity"], 1)] if judged else []),
        *(number(row["distinct"][n], 3) for n in ("1", "2", "3")),
        number(row["entropy"]),
        number(row["repetition"], 3),
    )

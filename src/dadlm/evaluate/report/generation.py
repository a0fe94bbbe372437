"""Open-ended generation: the paper's figure, its tables by block size, and further measures."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from dadlm.errors import DadlmError
from dadlm.evaluate import paper
from dadlm.evaluate.generation import ENOUGH
from dadlm.evaluate.pareto import draw_pareto
from dadlm.evaluate.report.document import (
    Cell,
    Column,
    Content,
    Difference,
    Figure,
    Found,
    Section,
    Table,
    apart,
    measured,
    number,
    ruled,
)
from dadlm.evaluate.report.subjects import (
    Facts,
    Key,
    block_size,
    data_beside,
    key_of,
    models_differ,
    paper_mauve,
    paper_name,
    paper_tpf,
    rank,
    rows_of,
    table,
    value_differs,
    write_key,
)

Grid = dict[Key, dict[str, Facts]]
"""Configuration → name of a model → its row."""

_TPF, _MAUVE = "Adjusted TPF ↑", "MAUVE ↑"
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


def _sentences(result: Facts, size: int | None, where: str) -> Iterator[str]:
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


def block_sizes(result: Facts) -> list[int | None]:
    """Those with a table of their own, large ones first; None: MDLM. AR is a reference for all."""
    sizes = {block_size(row) for row in result["rows"] if row["family"] != "ar"}
    return sorted(sizes, key=lambda size: -(size or 0))


def grid_of(result: Facts, size: int | None) -> Grid:
    """The rows of one block size, models in the paper's order."""
    grid: Grid = {}
    for row in sorted(result["rows"], key=rank):
        if row["family"] != "ar" and block_size(row) == size:
            grid.setdefault(key_of(row), {})[row["model"]] = row
    return grid


def grid_table(one: Found, size: int | None, where: str) -> Table:
    grid = grid_of(one.result, size)
    columns, cells_of = zip(*_columns(grid, size), strict=True)
    groups = {column.group for column in columns}
    rows = ruled((key[0], tuple(cell_of(key) for cell_of in cells_of)) for key in grid)
    return table(
        [one],
        rows,
        caption=f"{'MAUVE and adjusted TPF' if _MAUVE in groups else 'Adjusted TPF'}, "
        f"{f'block size {size}' if size else 'no blocks'}{where}.",
        columns=columns,
        differences=tuple(_differences(one.result)) if any(column.paper for column in columns) else None,
        notes=tuple(_notes(one.result, _MAUVE in groups)),
    )


def _columns(grid: Grid, size: int | None) -> Iterator[tuple[Column, Callable[[Key], Content]]]:
    """Columns, and what each says of a configuration; the paper's stand where it has numbers."""
    families = {name: row["family"] for rows in grid.values() for name, row in rows.items()}
    yield Column("Denoising"), write_key
    for name, family in families.items():
        yield Column(name, _TPF), partial(_tpf, grid, name)
        theirs = {key: paper_tpf(family, size, key) for key in grid}
        if any(theirs.values()):
            yield Column(f"{paper_name(family, name)}, paper", _TPF, paper=True), partial(_from, theirs, 2)
    for name, family in families.items():
        if any(rows[name]["mauve"] for rows in grid.values() if name in rows):
            yield Column(name, _MAUVE), partial(_mauve, grid, name)
            theirs = {key: paper_mauve(family, name, size, key) for key in grid}
            if any(theirs.values()):
                title = f"{paper_name(family, name)}, paper"
                yield Column(title, _MAUVE, paper=True), partial(_from, theirs, 3)


def _from(values: dict[Key, float | None], digits: int, key: Key) -> Content:
    return number(values[key], digits)


def _tpf(grid: Grid, name: str, key: Key) -> Content:
    row = grid[key].get(name)
    if row is None:
        return None
    adjusted = row["adjusted_tpf"]
    return Cell(number(row["raw_tpf"]), "raw") if adjusted is None else number(adjusted)


def _mauve(grid: Grid, name: str, key: Key) -> Content:
    if name not in grid[key]:
        return None
    ours = grid[key][name]["mauve"]
    others = [row["mauve"] for other, row in grid[key].items() if other != name]
    return measured(ours, 3, best=apart(ours, others))


def _differences(result: Facts) -> Iterator[Difference]:
    yield data_beside(rows_of(result), "OpenWebText")
    yield from models_differ(result["models"])
    yield from value_differs("prompt tokens", result["prompt_tokens"], paper.PROMPT_TOKENS)
    yield from value_differs("new tokens", result["new_tokens"], paper.NEW_TOKENS)
    yield from value_differs("samples", result["samples"], paper.SAMPLES)
    embedder = result["embedder"]
    if embedder and "gpt2large" not in embedder.lower().replace("-", "").replace(" ", ""):
        yield Difference("embedder of MAUVE", embedder, paper.EMBEDDER)
    timed = timing(result)
    if timed and "A800" not in timed["device"]:
        yield Difference("device", timed["device"], paper.DEVICE)
    if timed:
        yield from value_differs("batch size of the timing", timed["batch_size"], paper.BATCH_SIZE)


def timing(result: Facts) -> Facts | None:
    """On what steps were timed: the same for every model and configuration of a run."""
    inside = result.get("latency") or None
    while inside and "device" not in inside:
        inside = next((part for part in inside.values() if isinstance(part, dict)), None)
    return inside


def _notes(result: Facts, has_mauve: bool) -> Iterator[str]:
    if has_mauve:
        yield "Bold: an interval above all others of its row."
    for row in result["rows"]:
        if row["family"] == "ar" and row["mauve"]:
            cell, usual = measured(row["mauve"], 3), key_of(row) == ("AR", None)
            theirs = f" (paper {paper.AR_MAUVE})" if usual else f", decoded by {write_key(key_of(row))}"
            yield f"{row['model']}, for reference: MAUVE {cell.text} {cell.beside}{theirs}."
    yield from map(str, result.get("notes") or ())


def measures_table(one: Found, where: str) -> Table:
    result = one.result
    judged = any(row["judge_perplexity"] for row in result["rows"])
    timed = timing(result)
    ranked = sorted(result["rows"], key=lambda row: (*rank(row), row["model"]))
    rows = [
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
        notes=tuple(_notes(result, False)) if not block_sizes(result) else (),
    )


def _measures(row: Facts, judged: bool, timed: bool) -> Iterator[Content]:
    yield from _text(row, judged)
    yield number(row["raw_tpf"])
    yield number(row["tpf_with_cache_passes"])
    yield number(row["empty"], 0)
    if timed:
        yield number(row.get("ms_per_step"))


def _text(row: Facts, judged: bool) -> tuple[Content, ...]:
    """What can be said of texts alone."""
    return (
        *([measured(row["judge_perplexity"], 1)] if judged else []),
        *(number(row["distinct"][n], 3) for n in ("1", "2", "3")),
        number(row["entropy"]),
        number(row["repetition"], 3),
    )

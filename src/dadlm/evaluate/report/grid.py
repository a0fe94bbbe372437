"""The paper's table of MAUVE and adjusted TPF for one block size, its numbers beside ours."""

from collections.abc import Callable, Iterator
from functools import partial

from dadlm.evaluate import paper
from dadlm.evaluate.report.document import (
    Cell,
    Column,
    Content,
    Difference,
    Found,
    Table,
    apart,
    measured,
    number,
    ruled,
)
from dadlm.evaluate.report.subjects import (
    Json,
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

Grid = dict[Key, dict[str, Json]]
"""Configuration → name of a model → its row."""

_TPF, _MAUVE = "Adjusted TPF ↑", "MAUVE ↑"


def block_sizes(result: Json) -> list[int | None]:
    """Those with a table of their own, large ones first; None: MDLM. AR is a reference for all."""
    sizes = {block_size(row) for row in result["rows"] if row["family"] != "ar"}
    return sorted(sizes, key=lambda size: -(size or 0))


def grid_of(result: Json, size: int | None) -> Grid:
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
        notes=tuple(grid_notes(one.result, _MAUVE in groups)),
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


def _differences(result: Json) -> Iterator[Difference]:
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


def timing(result: Json) -> Json | None:
    """On what steps were timed: the same for every model and configuration of a run."""
    found = result.get("latency") or None
    while found and "device" not in found:
        found = next((part for part in found.values() if isinstance(part, dict)), None)
    return found


def grid_notes(result: Json, has_mauve: bool) -> Iterator[str]:
    if has_mauve:
        yield "Bold: an interval above all others of its row."
    for row in result["rows"]:
        if row["family"] == "ar" and row["mauve"]:
            cell, usual = measured(row["mauve"], 3), key_of(row) == ("AR", None)
            theirs = f" (paper {paper.AR_MAUVE})" if usual else f", decoded by {write_key(key_of(row))}"
            yield f"{row['model']}, for reference: MAUVE {cell.text} {cell.beside}{theirs}."
    yield from map(str, result.get("notes") or ())

"""Open-ended generation: the paper's figure, its tables of MAUVE and TPF by block size, further measures."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from dadlm.errors import DadlmError
from dadlm.evaluate import paper
from dadlm.evaluate.generation import ENOUGH
from dadlm.evaluate.pareto import draw_pareto
from dadlm.evaluate.report import document as doc
from dadlm.evaluate.report import subjects
from dadlm.evaluate.report.document import Column, Content, Figure, Found, Table, measured, number
from dadlm.evaluate.report.subjects import Json, Key, block_size, key_of, rank, write_key
from dadlm.evaluate.subject import NAMES

_LARGEST = 5_000_000  # bytes of a figure; a larger one is left out
_TPF, _MAUVE = "Adjusted TPF ↑", "MAUVE ↑"

Grid = dict[Key, dict[str, Json]]
"""Configuration → name of a model → its row."""


def section(found: list[Found]) -> doc.Parts:
    parts: list[Table | Figure] = []
    short: list[str] = []
    for one in found:
        where = f" ({one.folder})" if len(found) > 1 else ""
        parts += _figure(one, where)
        sizes = _block_sizes(one.result)
        for size in sizes:
            parts.append(_grid_table(one, size, where))
            short += _sentences(one.result, size, where)
        parts.append(_measures_table(one, where, () if sizes else _notes(one.result, False)))
    return parts, short


def _figure(one: Found, where: str) -> Iterator[Figure]:
    """The figure beside the result, else a new one; none where it is too large or cannot be drawn."""
    caption = f"Quality against tokens per forward pass, one panel for each block size{where}."
    beside = one.file.parent / "pareto.svg"
    if beside.is_file():
        if beside.stat().st_size <= _LARGEST:
            yield Figure(beside.read_bytes(), caption)
        return
    with TemporaryDirectory() as folder:
        try:
            draw_pareto(one.result, Path(folder) / "pareto")
        except DadlmError:  # no matplotlib, or nothing was measured that could be drawn
            return
        yield Figure((Path(folder) / "pareto.svg").read_bytes(), caption)


def _block_sizes(result: Json) -> list[int | None]:
    """Those with a table of their own, large ones first; None: MDLM. AR is a reference for all."""
    sizes = {block_size(row) for row in result["rows"] if row["family"] != "ar"}
    return sorted(sizes, key=lambda size: -(size or 0))


def _grid(result: Json, size: int | None) -> tuple[Grid, dict[str, str]]:
    """The rows of one block size, and the families of their models, in the paper's order."""
    grid: Grid = {}
    for row in sorted(result["rows"], key=rank):
        if row["family"] != "ar" and block_size(row) == size:
            grid.setdefault(key_of(row), {})[row["model"]] = row
    return grid, {name: row["family"] for rows in grid.values() for name, row in rows.items()}


def _sentences(result: Json, size: int | None, where: str) -> Iterator[str]:
    """DA-DLM against BD3LM in MAUVE and judge perplexity, over the configurations that both have."""
    grid, families = _grid(result, size)
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
            clear = sum(doc.apart(one, [two]) for one, two in pairs)
            worse = sum(doc.apart(two, [one]) for one, two in pairs)
            yield (
                f"{qualities[quality]}{where}: {name} better than {other} in {better} of {len(pairs)} "
                f"configurations, intervals apart in {clear}; worse with intervals apart in {worse}; "
                f"{result['samples']} samples.{few}"
            )


def _grid_table(one: Found, size: int | None, where: str) -> Table:
    grid, families = _grid(one.result, size)
    columns, contents = zip(*_columns(grid, families, size), strict=True)
    has_mauve = any(column.group == _MAUVE for column in columns)
    return Table(
        [one],
        f"{'MAUVE and adjusted TPF' if has_mauve else 'Adjusted TPF'}, "
        f"{f'block size {size}' if size else 'no blocks'}{where}.",
        columns,
        doc.ruled((key[0], [content[key] for content in contents]) for key in grid),
        differences=_differences(one.result) if any(column.paper for column in columns) else None,
        notes=_notes(one.result, has_mauve),
    )


def _columns(
    grid: Grid, families: dict[str, str], size: int | None
) -> Iterator[tuple[Column, dict[Key, Content]]]:
    """Columns, and what each says of a configuration; the paper's stand where it has numbers."""
    yield Column("Denoising"), {key: write_key(key) for key in grid}
    for at, group in enumerate((_TPF, _MAUVE)):
        for name, family in families.items():
            if group == _MAUVE and not any(rows[name]["mauve"] for rows in grid.values() if name in rows):
                continue
            yield Column(name, group), {key: _ours(rows, name, group) for key, rows in grid.items()}
            theirs = {key: _paper(family, name, size, key)[at] for key in grid}
            if any(theirs.values()):
                title = "BD3LM-300K" if _is_300k(family, name) else NAMES[family]
                values: dict[Key, Content] = {key: number(theirs[key], 2 + at) for key in grid}
                yield Column(f"{title}, paper", group, paper=True), values


def _is_300k(family: str, name: str) -> bool:
    """The paper has a BD3LM that was trained for twice the steps."""
    return family == "bd3lm" and "300k" in name.lower()


def _paper(family: str, name: str, size: int | None, key: Key) -> tuple[float | None, float | None]:
    """The paper's TPF and MAUVE of such a model."""
    row = subjects.paper_row(size, key)
    if row is None or family not in ("bd3lm", "dadlm"):
        return None, None
    if family == "dadlm":
        return row.dadlm_tpf, row.dadlm_mauve
    if size == 16 and _is_300k(family, name):
        return row.bd3lm_tpf, paper.BD3LM_300K_MAUVE[paper.GENERATION[16].index(row)]
    return row.bd3lm_tpf, row.bd3lm_mauve


def _ours(rows: dict[str, Json], name: str, group: str) -> Content:
    """TPF or MAUVE of a model in one configuration."""
    if name not in rows:
        return None
    row = rows[name]
    if group == _MAUVE:
        others = [row["mauve"] for other, row in rows.items() if other != name]
        return measured(row["mauve"], 3, best=doc.apart(row["mauve"], others))
    raw = doc.Cell(number(row["raw_tpf"]), "raw")
    return raw if row["adjusted_tpf"] is None else number(row["adjusted_tpf"])


def _differences(result: Json) -> Iterator[doc.Difference]:
    yield "data", subjects.rows_of(result), "OpenWebText"
    yield from subjects.models_differ(result["models"])
    yield "prompt tokens", result["prompt_tokens"], paper.PROMPT_TOKENS
    yield "new tokens", result["new_tokens"], paper.NEW_TOKENS
    yield "samples", result["samples"], paper.SAMPLES
    embedder = result["embedder"]
    if embedder and "gpt2large" not in embedder.lower().replace("-", "").replace(" ", ""):
        yield "embedder of MAUVE", embedder, paper.EMBEDDER
    if timed := _timing(result):
        yield subjects.device_differs(timed["device"])
        yield "batch size of the timing", timed["batch_size"], paper.BATCH_SIZE


def _timing(result: Json) -> Json | None:
    """On what steps were timed: the same for every model and configuration of a run."""
    found = result.get("latency") or None
    while found and "device" not in found:
        found = next((part for part in found.values() if isinstance(part, dict)), None)
    return found


def _notes(result: Json, has_mauve: bool) -> Iterator[str]:
    if has_mauve:
        yield "Bold: an interval above all others of its row."
    for row in result["rows"]:
        if row["family"] == "ar" and row["mauve"]:
            usual = key_of(row) == ("AR", None)
            theirs = f" (paper {paper.AR_MAUVE})" if usual else f", decoded by {write_key(key_of(row))}"
            yield f"{row['model']}, for reference: MAUVE {doc.in_words(row['mauve'], 3)}{theirs}."
    yield from map(str, result.get("notes") or ())


def _measures_table(one: Found, where: str, notes: Iterator[str] | tuple[()]) -> Table:
    result = one.result
    judged, timed = any(row["judge_perplexity"] for row in result["rows"]), _timing(result)
    rows: list[tuple[str | None, list[Content]]] = []
    for row in sorted(result["rows"], key=lambda row: (*rank(row), row["model"])):
        cost = [number(row["raw_tpf"]), number(row["tpf_with_cache_passes"]), number(row["empty"], 0)]
        cost += [number(row.get("ms_per_step"))] if timed else []
        rows.append((row["model"], [row["model"], write_key(key_of(row)), *_text(row, judged), *cost]))
    if result.get("reference"):
        rest = [None] * (4 if timed else 3)
        rows.append((None, ["True text", None, *_text(result["reference"], judged), *rest]))
    judge = f"; perplexity under {result['judge_lm']}" if result["judge_lm"] else ""
    columns: list[Column | str] = [
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
    ]
    caption = f"Further measures of the same samples{where}{judge}."
    return Table([one], caption, columns, doc.ruled(rows), notes=notes)


def _text(row: Json, judged: bool) -> list[Content]:
    """Measures that need no reference."""
    distinct = [number(row["distinct"][n], 3) for n in ("1", "2", "3")]
    perplexity = [measured(row["judge_perplexity"], 1)] if judged else []
    return [*perplexity, *distinct, number(row["entropy"]), number(row["repetition"], 3)]

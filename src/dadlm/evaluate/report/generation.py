"""Open-ended generation: the paper's figure, its tables by block size, and further measures."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from dadlm.errors import DadlmError
from dadlm.evaluate.generation import ENOUGH
from dadlm.evaluate.pareto import draw_pareto
from dadlm.evaluate.report.document import Figure, Section, Table, apart
from dadlm.evaluate.report.gather import Found
from dadlm.evaluate.report.grid import block_sizes, grid_of, grid_table
from dadlm.evaluate.report.measures import measures_table
from dadlm.evaluate.report.subjects import Facts

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

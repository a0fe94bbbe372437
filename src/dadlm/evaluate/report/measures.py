"""What else was measured of generated samples; the paper has none of it."""

from dadlm.evaluate.report.configurations import key_of, write_key
from dadlm.evaluate.report.document import NONE, Cell, Column, Row, Table, measured, plain
from dadlm.evaluate.report.gather import Found
from dadlm.evaluate.report.grid import timing
from dadlm.evaluate.report.subjects import Facts, rank, table


def measures_table(one: Found, where: str) -> Table:
    result = one.result
    judged = any(row["judge_perplexity"] for row in result["rows"])
    timed = timing(result)
    rows, before = [], ""
    for row in sorted(result["rows"], key=lambda row: (*rank(row), row["model"])):
        costs = [plain(row["raw_tpf"]), plain(row["tpf_with_cache_passes"]), plain(row["empty"], 0)]
        costs += [plain(row.get("ms_per_step"))] if timed else []
        names = (Cell(row["model"]), Cell(write_key(key_of(row))))
        rows.append(Row((*names, *_text(row, judged), *costs), rule=row["model"] != before))
        before = row["model"]
    if result.get("reference"):
        none, text = Cell(NONE), _text(result["reference"], judged)
        rows.append(Row((Cell("True text"), none, *text, *[none] * (4 if timed else 3)), rule=True))
    judge = f"; perplexity under {result['judge_lm']}" if result["judge_lm"] else ""
    return table(
        [one],
        rows,
        caption=f"Further measures of the same samples{where}{judge}.",
        columns=(
            Column("Model"),
            Column("Denoising", words=True),
            *([Column("Perplexity ↓")] if judged else []),
            *(Column(str(n), "Distinct n-grams") for n in (1, 2, 3)),
            Column("Entropy, nats"),
            Column("Repeated 4-grams ↓"),
            Column("raw", "TPF ↑"),
            Column("with cache passes", "TPF ↑"),
            Column("Empty"),
            *([Column(f"ms per step, batch size {timed['batch_size']}")] if timed else []),
        ),
        differences=None,
    )


def _text(row: Facts, judged: bool) -> tuple[Cell, ...]:
    """What can be said of texts alone."""
    return (
        *([measured(row["judge_perplexity"], 1)] if judged else []),
        *(plain(row["distinct"][n], 3) for n in ("1", "2", "3")),
        plain(row["entropy"]),
        plain(row["repetition"], 3),
    )

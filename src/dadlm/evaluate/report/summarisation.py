"""The paper's table of summarisation: ROUGE and raw TPF, its rows below ours."""

from dadlm.evaluate import paper
from dadlm.evaluate.intervals import caution
from dadlm.evaluate.report.differences import data_differs, known_as, models_differ
from dadlm.evaluate.report.document import (
    NONE,
    Cell,
    Column,
    Row,
    Section,
    Table,
    apart,
    measured,
    plain,
)
from dadlm.evaluate.report.gather import Found
from dadlm.evaluate.report.subjects import (
    Facts,
    by_data,
    labels,
    rank,
    source_of,
    table,
)

_SCORES = {"rouge1": "R-1", "rouge2": "R-2", "rougeL": "R-L", "average": "Avg"}


def section(found: list[Found]) -> Section:
    groups = list(by_data(found))
    return Section(
        anchor="summarisation",
        title="Summarisation",
        about="ROUGE F1 × 100 with stemming; TPF: tokens per forward pass, raw. Cut: documents too long to "
        "be read whole. Lead sentence: the document's first.",
        parts=tuple(_table(group) for group in groups),
        short=tuple(_sentence(one.result) for group in groups for one in group),
    )


def _table(group: list[Found]) -> Table:
    group = sorted(group, key=lambda one: rank(one.result["model"]))
    data = group[0].result["data"]
    known = known_as(data["source"], paper.SUMMARISATION)
    sets = [known] if known else list(paper.SUMMARISATION)
    names = labels([(f"{one.result['model']['name']}, {strategy(one.result)}", one.folder) for one in group])
    rows = []
    for one, name in zip(group, names, strict=True):
        result = one.result
        scores = [_ours(result, score, group) for score in _SCORES]
        rows.append(Row((Cell(name), *scores, plain(result["tpf"]), *_counts(result)), rule=True))
        for set_ in sets:
            infills = result["settings"]["infill"] is not None
            theirs = paper.SUMMARISATION[set_].get((result["model"]["family"], infills))
            if theirs:
                values = (plain(value) for value in theirs)
                rows.append(Row((Cell(f"paper, {set_}"), *values, Cell(NONE), Cell(NONE)), paper=True))
    lead = (measured(group[0].result["lead"][score]) for score in _SCORES)
    rows.append(Row((Cell("Lead sentence"), *lead, *[Cell(NONE)] * 3), rule=True))
    return table(
        group,
        rows,
        caption=f"Summarisation of {source_of(data)} ({data['pairs']:,} pairs), ROUGE ↑.",
        columns=(
            Column("Model"),
            *(Column(name, "ROUGE ↑") for name in _SCORES.values()),
            Column("TPF ↑"),
            Column("Empty"),
            Column("Cut"),
        ),
        differences=(
            *data_differs(data, *paper.SUMMARISATION),
            *models_differ([one.result["model"] for one in group]),
        ),
        notes=(
            *(["Bold: an interval above those of all other models."] if len(group) > 1 else []),
            *caution(data["pairs"], "pairs"),
        ),
    )


def _ours(result: Facts, score: str, group: list[Found]) -> Cell:
    others = [one.result[score] for one in group if one.result is not result]
    return measured(result[score], best=apart(result[score], others))


def _counts(result: Facts) -> tuple[Cell, ...]:
    return tuple(plain(result.get(name), 0) for name in ("empty", "truncated"))


def strategy(result: Facts) -> str:
    """How it was decoded, in the paper's words."""
    settings = result["settings"]
    if result["model"]["family"] == "ar":
        return "sampled" if settings["temperature"] else "greedy"
    told = settings["sampler"]
    if told == "confidence":
        told = f"conf {settings['threshold']:g}"
    elif settings["steps"]:
        told = f"{told}, T={settings['steps']}"
    infill = settings["infill"]
    return f"{told} + infill ({infill[0]}, {infill[1]:g})" if infill else told


def _sentence(result: Facts) -> str:
    ours, lead = measured(result["average"]), measured(result["lead"]["average"])
    return (
        f"Summaries of {source_of(result['data'])}: {result['model']['name']} ({strategy(result)}) average "
        f"ROUGE {ours.text} {ours.beside}, lead sentence {lead.text} {lead.beside}."
    )

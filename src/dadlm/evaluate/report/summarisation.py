"""The paper's table of summarisation: ROUGE and raw TPF, its rows below ours where decoding is the same."""

from collections.abc import Iterator
from dataclasses import asdict

from dadlm.decode import DecodeSettings
from dadlm.evaluate import paper
from dadlm.evaluate.intervals import caution
from dadlm.evaluate.report.document import (
    Column,
    Content,
    Difference,
    Found,
    Row,
    Section,
    Table,
    apart,
    measured,
    number,
    whole,
)
from dadlm.evaluate.report.subjects import (
    Json,
    block_size,
    by_data,
    data_beside,
    known_as,
    labels,
    models_differ,
    rank,
    source_of,
    table,
    value_differs,
)
from dadlm.evaluate.summarisation import paper_settings

_SCORES = {"rouge1": "R-1", "rouge2": "R-2", "rougeL": "R-L", "average": "Avg"}
_SHOWN = 5  # lines left out that are named; the result names all


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
        rows.append(Row((name, *scores, number(result["tpf"]), *_counts(result)), rule=True))
        for set_ in sets if not list(_decoding_differs(result)) else ():
            infills = result["settings"]["infill"] is not None
            theirs = paper.SUMMARISATION[set_].get((result["model"]["family"], infills))
            if theirs:
                values = (number(value) for value in theirs)
                rows.append(Row((f"paper, {set_}", *values, None, None), paper=True))
    lead = (measured(group[0].result["lead"][score]) for score in _SCORES)
    rows.append(Row(("Lead sentence", *lead, *[None] * 3), rule=True))
    return table(
        group,
        rows,
        caption=f"Summarisation of {source_of(data)} ({data['pairs']:,} pairs), ROUGE ↑.",
        columns=("Model", *(Column(name, "ROUGE ↑") for name in _SCORES.values()), "TPF ↑", "Empty", "Cut"),
        differences=(
            data_beside(f"{source_of(data)} ({data['pairs']:,} pairs)", *sets),
            *models_differ([one.result["model"] for one in group]),
            *dict.fromkeys(one for found in group for one in _differences(found.result)),
        ),
        notes=(
            *(["Bold: an interval above those of all other models."] if len(group) > 1 else []),
            *caution(data["pairs"], "pairs"),
            *dict.fromkeys(
                note for one, name in zip(group, names, strict=True) for note in _notes(one.result, name)
            ),
        ),
    )


def _notes(result: Json, name: str) -> Iterator[str]:
    """What became of the pairs of this result."""
    if result.get("references_too_long"):
        limit = whole(result["summary_tokens"])
        count = whole(result["references_too_long"])
        yield f"{name}: {count} references are longer than the {limit} tokens of a summary; they count whole."
    if lines := result.get("skipped_lines"):
        more = f" and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
        yield f"{len(lines)} lines left out: {'; '.join(lines[:_SHOWN])}{more}."
    if result.get("timed"):
        batch = f"{whole(result['timed'])} in batches of {whole(result['batch_size'])}"
        yield f"{name}: {number(result['ms_per_summary'], 1)} ms per summary ({batch})."


def _differences(result: Json) -> Iterator[Difference]:
    if result["model"]["family"] in ("bd3lm", "dadlm"):
        yield from value_differs("block size", block_size(result["model"]), paper.SUMMARY_BLOCK_SIZE)
    yield from value_differs("document tokens", result.get("document_tokens"), paper.DOCUMENT_TOKENS)
    yield from value_differs("summary tokens", result.get("summary_tokens"), paper.SUMMARY_TOKENS)
    yield from _decoding_differs(result)


def _decoding_differs(result: Json) -> Iterator[Difference]:
    """Any setting that is not what the paper decoded such a model with; infilling it had with and without."""
    family, ours = result["model"]["family"], result["settings"]
    infill = paper.SUMMARY_INFILL if ours["infill"] and family != "ar" else None
    before = asdict(DecodeSettings())  # a result that lacks a setting is older than it
    for name, theirs in asdict(paper_settings(family, infill=infill)).items():
        theirs, own = list(theirs) if isinstance(theirs, tuple) else theirs, ours.get(name, before[name])
        if name != "max_new_tokens" and own != theirs:
            yield Difference(f"{name} of {strategy(result)}", str(own), str(theirs))


def _ours(result: Json, score: str, group: list[Found]) -> Content:
    others = [one.result[score] for one in group if one.result is not result]
    return measured(result[score], best=apart(result[score], others))


def _counts(result: Json) -> tuple[Content, ...]:
    return tuple(number(result.get(name), 0) for name in ("empty", "truncated"))


def strategy(result: Json) -> str:
    """How it was decoded, in the paper's words."""
    settings = result["settings"]
    if result["model"]["family"] == "ar":
        return "sampled" if settings["temperature"] else "greedy"
    how = settings["sampler"]
    if how == "confidence":
        how = f"conf {settings['threshold']:g}" + (", lookahead" if settings["path"] == "lookahead" else "")
    elif settings["steps"]:
        how = f"{how}, T={settings['steps']}"
    infill = settings["infill"]
    return f"{how} + infill ({infill[0]}, {infill[1]:g})" if infill else how


def _sentence(result: Json) -> str:
    ours, lead = measured(result["average"]), measured(result["lead"]["average"])
    return (
        f"Summaries of {source_of(result['data'])}: {result['model']['name']} ({strategy(result)}) average "
        f"ROUGE {ours.text} {ours.beside}, lead sentence {lead.text} {lead.beside}."
    )

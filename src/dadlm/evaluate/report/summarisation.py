"""The paper's table of summarisation: ROUGE and raw TPF, its rows below ours where decoding is the same."""

from collections.abc import Iterator
from dataclasses import asdict

from dadlm.decode import DecodeSettings
from dadlm.evaluate import paper
from dadlm.evaluate.intervals import caution
from dadlm.evaluate.report import document as doc
from dadlm.evaluate.report import subjects
from dadlm.evaluate.report.document import Column, Found, Row, measured, number, whole
from dadlm.evaluate.report.subjects import Json, source_of
from dadlm.evaluate.summarisation import paper_settings

_SCORES = {"rouge1": "R-1", "rouge2": "R-2", "rougeL": "R-L", "average": "Avg"}
_SHOWN = 5  # lines left out that are named; the result names all


def section(found: list[Found]) -> doc.Parts:
    groups = subjects.by_data(found)
    return list(map(_table, groups)), [_sentence(one.result) for group in groups for one in group]


def _table(group: list[Found]) -> doc.Table:
    group = sorted(group, key=lambda one: subjects.rank(one.result["model"]))
    data = group[0].result["data"]
    text = f"{source_of(data)} ({data['pairs']:,} pairs)"
    known = subjects.known_as(data["source"], paper.SUMMARISATION)
    sets = [known] if known else list(paper.SUMMARISATION)
    names = subjects.labels(
        [(f"{one.result['model']['name']}, {_strategy(one.result)}", one) for one in group]
    )
    rows, notes = [], []
    for name, result in zip(names, (one.result for one in group), strict=True):
        rows.append(Row([name, *_ours(result, group)], rule=True))
        notes += _notes(result, name)
        for set_ in sets if not list(_decoding_differs(result)) else ():
            infills = result["settings"]["infill"] is not None
            theirs = paper.SUMMARISATION[set_].get((result["model"]["family"], infills))
            if theirs:
                rows.append(Row([f"paper, {set_}", *map(number, theirs), None, None], paper=True))
    lead = (measured(group[0].result["lead"][score]) for score in _SCORES)
    rows.append(Row(["Lead sentence", *lead, *[None] * 3], rule=True))
    bold = ["Bold: an interval above those of all other models."] if len(group) > 1 else []
    return doc.Table(
        group,
        f"Summarisation of {text}, ROUGE ↑.",
        ["Model", *(Column(name, "ROUGE ↑") for name in _SCORES.values()), "TPF ↑", "Empty", "Cut"],
        rows,
        differences=[
            ("data", text, " and ".join(sets)),
            *subjects.models_differ([one.result["model"] for one in group]),
            *(difference for one in group for difference in _differences(one.result)),
        ],
        notes=[*bold, *caution(data["pairs"], "pairs"), *dict.fromkeys(notes)],
    )


def _ours(result: Json, group: list[Found]) -> Iterator[doc.Content]:
    for score in _SCORES:
        others = [one.result[score] for one in group if one.result is not result]
        yield measured(result[score], best=doc.apart(result[score], others))
    yield number(result["tpf"])
    yield whole(result.get("empty"))
    yield whole(result.get("truncated"))


def _notes(result: Json, name: str) -> Iterator[str]:
    """What was cut, left out and timed."""
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


def _differences(result: Json) -> Iterator[doc.Difference]:
    if result["model"]["family"] in ("bd3lm", "dadlm"):
        yield "block size", subjects.block_size(result["model"]), paper.SUMMARY_BLOCK_SIZE
    yield "document tokens", result.get("document_tokens"), paper.DOCUMENT_TOKENS
    yield "summary tokens", result.get("summary_tokens"), paper.SUMMARY_TOKENS
    yield from _decoding_differs(result)


def _decoding_differs(result: Json) -> Iterator[doc.Difference]:
    """Any setting that is not what the paper decoded such a model with; infilling it had with and without."""
    family, ours = result["model"]["family"], result["settings"]
    infill = paper.SUMMARY_INFILL if ours["infill"] and family != "ar" else None
    before = asdict(DecodeSettings())  # a result that lacks a setting is older than it
    for name, theirs in asdict(paper_settings(family, infill=infill)).items():
        theirs, own = list(theirs) if isinstance(theirs, tuple) else theirs, ours.get(name, before[name])
        if name != "max_new_tokens" and own != theirs:
            yield f"{name} of {_strategy(result)}", str(own), str(theirs)


def _strategy(result: Json) -> str:
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
    ours, lead = doc.in_words(result["average"]), doc.in_words(result["lead"]["average"])
    name = f"{result['model']['name']} ({_strategy(result)})"
    return f"Summaries of {source_of(result['data'])}: {name} average ROUGE {ours}, lead sentence {lead}."

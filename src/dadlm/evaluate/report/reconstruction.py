"""The paper's Table 1 and, below it, what the paper does not give: paired differences with intervals."""

from collections.abc import Iterator
from typing import Any

from dadlm.evaluate import paper
from dadlm.evaluate.report import document as doc
from dadlm.evaluate.report import subjects
from dadlm.evaluate.report.document import Column, Content, Found, Table, measured, number
from dadlm.evaluate.report.subjects import Json, block_size, rows_of
from dadlm.evaluate.subject import NAMES

_SETS = ("LM1B", "OpenWebText")
_PAPER = [Column(name, "Paper", paper=True) for name in _SETS]
_VERDICTS = {"model": "better", "against": "worse", "": "no difference that the interval supports"}


def _side(result: Json, side: str) -> dict[str, Any]:
    """What a result says of one of its models: "model" or "against"."""
    start = "" if side == "model" else "against_"
    said = {name: result.get(f"{start}{name}") for name in ("value", "interval", "bound", "gap")}
    model = result[side]
    # The same weights with the same value are one measurement, in however many files it is.
    return {"model": model, "key": (model["name"], model["weights"], said["value"]), **said}


def section(found: list[Found]) -> doc.Parts:
    parts: list[Table | doc.Figure] = []
    short: list[str] = []
    for group in subjects.by_data(found):
        pairs = [one for one in group if one.result["against"]]
        parts.append(_values(group, pairs))
        if pairs:
            parts.append(_pairs(pairs))
            short += [_sentence(one.result) for one in pairs]
    return parts, short


def _values(group: list[Found], pairs: list[Found]) -> Table:
    every = [(_side(one.result, "model"), one) for one in group]
    every += [(_side(one.result, "against"), one) for one in pairs]
    once: dict[Any, tuple[Json, Found]] = {}
    for score, one in every:
        once.setdefault(score["key"], (score, one))
    scores = sorted(once.values(), key=lambda pair: subjects.rank(pair[0]["model"]))
    names = subjects.labels([(score["model"]["name"], one) for score, one in scores])
    winners = {_side(one.result, side)["key"] for one in pairs if (side := _better(one.result))}
    bold = ["Bold: better in a paired comparison whose interval leaves out 0."] if winners else []
    ours = (Column(name, "Ours") for name in ("Reconstruction", "Bound", "Gap"))
    return Table(
        group,
        f"Reconstruction ↓ on {rows_of(group[0].result)}, in the form of the paper's Table 1.",
        ["Model", Column("Family", words=True), "Block size", *ours, *_PAPER],
        doc.ruled(
            (score["model"]["family"], [name, *_cells(score, score["key"] in winners)])
            for (score, _), name in zip(scores, names, strict=True)
        ),
        differences=_differences(group),
        notes=[*bold, *subjects.cautions(group[0].result)],
    )


def _cells(score: Json, best: bool) -> Iterator[Content]:
    yield NAMES[score["model"]["family"]]
    yield number(block_size(score["model"]), 0)
    value = doc.Cell(number(score["value"], 3), best=best)
    yield value if score["interval"] is None else measured(score["interval"], 3, best=best)
    yield number(score["bound"], 3)
    yield number(score["gap"], 3)
    yield from map(number, _paper_values(score["model"]))


def _paper_values(model: Json) -> list[float | None]:
    theirs = paper.RECONSTRUCTION.get((model["family"], block_size(model)), {})
    return [theirs.get(name) for name in _SETS]


def _better(result: Json) -> str:
    """Which of a pair is better, if the interval of the difference says so."""
    low, high = result["difference"]["low"], result["difference"]["high"]
    return "model" if high < 0 else "against" if low > 0 else ""


def _pairs(pairs: list[Found]) -> Table:
    named = [(f"{one.result['model']['name']} − {one.result['against']['name']}", one) for one in pairs]
    rows, has_paper = [], False
    for name, (_, found) in zip(subjects.labels(named), named, strict=True):
        result = found.result
        one, other = _paper_values(result["model"]), _paper_values(result["against"])
        theirs = [x - y if x and y and one != other else None for x, y in zip(one, other, strict=True)]
        has_paper |= any(value is not None for value in theirs)
        masks = "the same" if result["same_masks"] else "each its own"
        rows.append(doc.Row([name, measured(result["difference"], 3), masks, *map(number, theirs)]))
    return Table(
        pairs,
        f"Paired differences in reconstruction on {rows_of(pairs[0].result)}; negative: the first is better.",
        ["Pair", Column("Difference", "Ours"), Column("Masks", "Ours", words=True), *_PAPER],
        rows,
        differences=_differences(pairs),
        notes=["The paper's are differences of its rounded values, without intervals."] if has_paper else [],
    )


def _differences(group: list[Found]) -> Iterator[doc.Difference]:
    models = [one.result[side] for one in group for side in ("model", "against") if one.result[side]]
    yield "data", rows_of(group[0].result), " and ".join(_SETS)
    yield from subjects.models_differ(models, _SETS)


def _sentence(result: Json) -> str:
    source = subjects.source_of(result["data"])
    pair = f"{result['model']['name']} against {result['against']['name']} on {source}"
    difference = doc.in_words(result["difference"], 3)
    return f"Reconstruction, {pair}: {_VERDICTS[_better(result)]}, {difference} nats per token."

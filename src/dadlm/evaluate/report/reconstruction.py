"""The paper's Table 1 and, below it, what the paper does not give: paired differences with intervals."""

from collections.abc import Iterator
from dataclasses import dataclass

from dadlm.evaluate import paper
from dadlm.evaluate.report.document import (
    Cell,
    Column,
    Content,
    Difference,
    Found,
    Row,
    Section,
    Table,
    measured,
    number,
    ruled,
)
from dadlm.evaluate.report.subjects import (
    Json,
    block_size,
    by_data,
    cautions,
    data_beside,
    family_name,
    labels,
    models_differ,
    rank,
    rows_of,
    source_of,
    table,
)

_SETS = ("LM1B", "OpenWebText")
_PAPER = tuple(Column(name, "Paper", paper=True) for name in _SETS)


@dataclass(frozen=True)
class _Score:
    """What a result says of one of its models."""

    model: Json
    value: float
    interval: Json | None
    bound: float | None
    gap: float | None
    folder: str

    @property
    def key(self) -> tuple[str, str, float]:
        """The same weights with the same value are one measurement, in however many files it is."""
        return self.model["name"], self.model["weights"], self.value


def section(found: list[Found]) -> Section:
    parts: list[Table] = []
    short: list[str] = []
    for group in by_data(found):
        pairs = [one for one in group if one.result["against"]]
        parts.append(_values(group, pairs))
        if pairs:
            parts.append(_pairs(pairs))
            short += [_sentence(one.result) for one in pairs]
    return Section(
        anchor="reconstruction",
        title="Conditional block reconstruction",
        about="Nats per token, weighted by the noise schedule: how well a masked block is restored from what "
        "is left of it and the blocks before. Lower is better. For DA-DLM it is no bound on the likelihood; "
        "the bound goes through its node marginals, and the gap between the two is what the graph adds.",
        parts=tuple(parts),
        short=tuple(short),
    )


def _values(group: list[Found], pairs: list[Found]) -> Table:
    scores = sorted(_scores(group, pairs), key=lambda score: rank(score.model))
    names = labels([(score.model["name"], score.folder) for score in scores])
    winners = {_score(one, side).key for one in pairs for side in _better(one.result)}
    rows = ruled(
        (score.model["family"], tuple(_cells(score, name, score.key in winners)))
        for score, name in zip(scores, names, strict=True)
    )
    return table(
        group,
        rows,
        caption=f"Reconstruction ↓ on {rows_of(group[0].result)}, in the form of the paper's Table 1.",
        columns=(
            "Model",
            Column("Family", words=True),
            "Block size",
            *(Column(name, "Ours") for name in ("Reconstruction", "Bound", "Gap")),
            *_PAPER,
        ),
        differences=tuple(_differences(group)),
        notes=(
            *(["Bold: better in a comparison below whose interval leaves out 0."] if winners else []),
            *cautions(group[0].result),
        ),
    )


def _cells(score: _Score, name: str, best: bool) -> Iterator[Content]:
    yield name
    yield family_name(score.model)
    yield number(block_size(score.model), 0)
    known = score.interval is not None
    yield measured(score.interval, 3, best=best) if known else Cell(number(score.value, 3), best=best)
    yield number(score.bound, 3)
    yield number(score.gap, 3)
    theirs = paper.RECONSTRUCTION.get((score.model["family"], block_size(score.model)), {})
    yield from (number(theirs.get(set_)) for set_ in _SETS)


def _scores(group: list[Found], pairs: list[Found]) -> list[_Score]:
    """Each measurement once."""
    scores = [_score(one, "model") for one in group] + [_score(one, "against") for one in pairs]
    return list({score.key: score for score in reversed(scores)}.values())[::-1]


def _score(one: Found, side: str) -> _Score:
    prefix = "" if side == "model" else "against_"
    known = {name: one.result.get(prefix + name) for name in ("interval", "bound", "gap")}
    return _Score(model=one.result[side], value=one.result[prefix + "value"], folder=one.folder, **known)


def _better(result: Json) -> list[str]:
    """Which of a pair is better, if the interval of the difference says so."""
    low, high = result["difference"]["low"], result["difference"]["high"]
    return ["model"] if high < 0 else ["against"] if low > 0 else []


def _pairs(pairs: list[Found]) -> Table:
    named = [
        (" − ".join(one.result[side]["name"] for side in ("model", "against")), one.folder) for one in pairs
    ]
    rows = []
    for one, name in zip(pairs, labels(named), strict=True):
        masks = "the same" if one.result["same_masks"] else "each its own"
        theirs = (number(_paper_difference(one.result, set_)) for set_ in _SETS)
        rows.append(Row((name, measured(one.result["difference"], 3), masks, *theirs)))
    return table(
        pairs,
        rows,
        caption=f"Paired differences in reconstruction on {rows_of(pairs[0].result)}; negative: the first is "
        "better.",
        columns=("Pair", Column("Difference", "Ours"), Column("Masks", "Ours", words=True), *_PAPER),
        differences=tuple(_differences(pairs)),
        notes=("The paper's are differences of its rounded values, without intervals.",),
    )


def _paper_difference(result: Json, set_: str) -> float | None:
    one, other = (
        paper.RECONSTRUCTION.get((result[side]["family"], block_size(result[side])))
        for side in ("model", "against")
    )
    return one[set_] - other[set_] if one and other and one is not other else None


def _differences(group: list[Found]) -> Iterator[Difference]:
    models = [one.result[side] for one in group for side in ("model", "against") if one.result[side]]
    yield data_beside(rows_of(group[0].result), *_SETS)
    yield from models_differ(models, _SETS)


def _sentence(result: Json) -> str:
    verdicts = {"model": "better", "against": "worse"}
    verdict = next((verdicts[side] for side in _better(result)), "no difference that the interval supports")
    pair = f"{result['model']['name']} against {result['against']['name']} on {source_of(result['data'])}"
    cell = measured(result["difference"], 3)
    return f"Reconstruction, {pair}: {verdict}, {cell.text} {cell.beside} nats per token."

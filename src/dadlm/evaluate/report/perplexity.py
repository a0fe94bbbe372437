"""Perplexity of every family on the same text: exact for AR and of a block in one pass, else bounds. Not in
the paper."""

from typing import Any

from dadlm.evaluate.report import document as doc
from dadlm.evaluate.report import subjects
from dadlm.evaluate.report.document import Column, Found, measured

_PLACES = (1, 2, 3, 4, 8, 16)


def section(found: list[Found]) -> doc.Parts:
    tables = []
    for group in subjects.by_data(found):
        once = [one for one in group if one.result.get("passes")]
        several = [one for one in group if not one.result.get("passes")]
        if several:
            tables.append(_table(several))
        if once:  # AR's exact likelihood stands beside it
            has_ar = any(map(_is_ar, once))
            tables.append(_one_pass([*once, *(one for one in several if _is_ar(one) and not has_ar)]))
    return tables, []


def _is_ar(one: Found) -> bool:
    return one.result["model"]["family"] == "ar"


def _named(group: list[Found]) -> list[tuple[str, dict[str, Any]]]:
    """Names and results, in the paper's order."""
    group = sorted(group, key=lambda one: subjects.rank(one.result["model"]))
    names = subjects.labels([(one.result["model"]["name"], one) for one in group])
    return list(zip(names, (one.result for one in group), strict=True))


def _one_pass(group: list[Found]) -> doc.Table:
    rows, named = [], _named(group)
    most = max(len(result.get("by_place") or []) for _, result in named)
    places = [place for place in _PLACES if place <= most]
    for name, result in named:
        by_place = dict(enumerate(result.get("by_place") or [], 1))
        nats = [doc.number(by_place.get(place), 2) for place in places]
        values = [measured(result["perplexity"]), measured(result["nll"], 3)]
        bits, tokens = measured(result.get("bits_per_byte"), 3), doc.whole(result["tokens"])
        rows.append(doc.Row([name, *values, *nats, bits, tokens]))
    return doc.Table(
        group,
        f"Exact likelihood ↓ of whole blocks in one pass, on {subjects.rows_of(group[0].result)}.",
        [
            "Model",
            "Perplexity ↓",
            "Nats per token ↓",
            *(Column(str(place), "Nats at place") for place in places),
            "Bits per byte ↓",
            "Tokens",
        ],
        rows,
        notes=[
            "A block is written in one pass (T = 1) after the text before it: a true likelihood of that "
            "sampler. AR writes one token a pass.",
            *subjects.cautions(group[0].result),
        ],
    )


def _table(group: list[Found]) -> doc.Table:
    rows, remarks = [], []
    for name, result in _named(group):
        forms = [measured(result["nll"], 3), measured(result["nll_by_time"], 3)]
        bits, tokens = measured(result.get("bits_per_byte"), 3), doc.whole(result["tokens"])
        kind = "upper bound" if result["is_bound"] else "exact"
        rows.append(doc.Row([name, kind, measured(result["perplexity"]), *forms, bits, tokens]))
        if slack := result.get("by_chains"):
            numbers = ", ".join(f"{doc.number(value, 3)} with {chains}" for chains, value in slack.items())
            remarks.append(f"{name} sums out open neighbours by sampled chains: {numbers} of them.")
        if result.get("forms_agree") is False:
            remarks.append(f"The two forms of {name} do not agree (by chance 1 time in 20).")
    return doc.Table(
        group,
        f"Perplexity ↓ on {subjects.rows_of(group[0].result)}.",
        [
            "Model",
            Column("Form", words=True),
            "Perplexity ↓",
            Column("low-variance form", "Nats per token ↓"),
            Column("sampled times", "Nats per token ↓"),
            "Bits per byte ↓",
            "Tokens",
        ],
        rows,
        # No value is marked as best: of two upper bounds the lower one need not belong to the better model.
        notes=[
            "An upper bound above an exact value does not show that the model is worse.",
            *subjects.cautions(group[0].result),
            *remarks,
        ],
    )

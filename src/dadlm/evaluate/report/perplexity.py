"""Perplexity of every family on the same text: exact for AR, bounds for the others. Not in the paper."""

from dadlm.evaluate.report import document as doc
from dadlm.evaluate.report import subjects
from dadlm.evaluate.report.document import Column, Found, measured


def section(found: list[Found]) -> doc.Parts:
    return list(map(_table, subjects.by_data(found))), []


def _table(group: list[Found]) -> doc.Table:
    group = sorted(group, key=lambda one: subjects.rank(one.result["model"]))
    names = subjects.labels([(one.result["model"]["name"], one) for one in group])
    rows, disagree = [], []
    for name, result in zip(names, (one.result for one in group), strict=True):
        forms = [measured(result["nll"], 3), measured(result["nll_by_time"], 3)]
        bits, tokens = measured(result.get("bits_per_byte"), 3), doc.whole(result["tokens"])
        kind = "upper bound" if result["is_bound"] else "exact"
        rows.append(doc.Row([name, kind, measured(result["perplexity"]), *forms, bits, tokens]))
        if result.get("forms_agree") is False:
            disagree.append(f"The two forms of {name} do not agree (by chance 1 time in 20).")
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
            *disagree,
        ],
    )

"""Perplexity of every family on the same text: exact for AR, bounds for the others. Not in the paper."""

from dadlm.evaluate.report.document import Column, Found, Row, Section, Table, measured, number
from dadlm.evaluate.report.subjects import by_data, cautions, labels, rank, rows_of, table


def section(found: list[Found]) -> Section:
    return Section(
        anchor="perplexity",
        title="Perplexity",
        about="Not in the paper, which gives no perplexity for DA-DLM. AR: exact. MDLM, BD3LM and DA-DLM: "
        "upper bounds, DA-DLM's through its node marginals; they hold for first-hitting decoding with "
        "sampled paths at temperature 1, top-p 1 and without infilling.",
        parts=tuple(_table(group) for group in by_data(found)),
    )


def _table(group: list[Found]) -> Table:
    group = sorted(group, key=lambda one: rank(one.result["model"]))
    names = labels([(one.result["model"]["name"], one.folder) for one in group])
    rows = []
    for name, result in zip(names, (one.result for one in group), strict=True):
        cells = (
            name,
            "upper bound" if result["is_bound"] else "exact",
            measured(result["perplexity"]),
            measured(result["nll"], 3),
            measured(result["nll_by_time"], 3),
            measured(result.get("bits_per_byte"), 3),
            number(result["tokens"], 0),
        )
        rows.append(Row(cells))
    disagree = [
        name for name, one in zip(names, group, strict=True) if one.result.get("forms_agree") is False
    ]
    return table(
        group,
        rows,
        caption=f"Perplexity ↓ on {rows_of(group[0].result)}.",
        columns=(
            "Model",
            Column("Form", words=True),
            "Perplexity ↓",
            Column("low-variance form", "Nats per token ↓"),
            Column("sampled times", "Nats per token ↓"),
            "Bits per byte ↓",
            "Tokens",
        ),
        differences=None,
        # No value is marked as best: of two upper bounds the lower one need not belong to the better model.
        notes=(
            "An upper bound above an exact value does not show that the model is worse.",
            *cautions(group[0].result),
            *(f"The two forms of {name} do not agree (by chance 1 time in 20)." for name in disagree),
        ),
    )

"""Tokens per cycle of the lossless mode."""

from dadlm.decode.pair import LOOKUP
from dadlm.evaluate.report import document as doc
from dadlm.evaluate.report.document import Column, Found, measured, number
from dadlm.evaluate.report.subjects import Json


def section(found: list[Found]) -> doc.Parts:
    return list(map(_table, found)), [line for one in found for line in _sentences(one.result)]


def _table(one: Found) -> doc.Table:
    result = one.result
    return doc.Table(
        [one],
        f"Tokens per cycle ↑ of drafts for {result['model']['name']} on {result['data'].get('source')}: "
        f"{result['samples']} prompts of {result['prompt_tokens']} tokens, {result['new_tokens']} new ones.",
        ["Draft", Column("Kind", words=True), "Temperature", "Tokens per cycle ↑", "per forward pass"],
        doc.ruled(
            (
                (row["temperature"], _kind(row)),
                [
                    row["draft"],
                    _kind(row),
                    number(row["temperature"], 1),
                    measured(row["tokens_per_cycle"]),
                    measured(row["tokens_per_forward"]),
                ],
            )
            for row in result["rows"]
        ),
        notes=result["notes"],
    )


def _sentences(result: Json) -> list[str]:
    best = max(result["rows"], key=lambda row: row["tokens_per_cycle"]["mean"])
    return [
        f"Most tokens per cycle for {result['model']['name']}: {doc.in_words(best['tokens_per_cycle'])}, "
        f"drafted by {best['draft']} ({_kind(best)}, temperature {number(best['temperature'], 1)})."
    ]


def _kind(row: Json) -> str:
    if row["draft"] == LOOKUP and row["tree"]:
        return f"chain of up to {row['tree']}"
    tree = f"{'drawn tree' if row.get('drawn') else 'tree'} of {row['tree']}"
    return ("chain" if row["tree"] == 0 else tree) + ", one pass" * row.get("one_pass", False)

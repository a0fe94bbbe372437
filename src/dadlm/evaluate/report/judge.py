"""The paper's tables of the judge: win rates among decided pairs, by decoding configuration."""

from collections.abc import Iterator

from dadlm.evaluate import paper
from dadlm.evaluate.pairs import in_words
from dadlm.evaluate.report import document as doc
from dadlm.evaluate.report import subjects
from dadlm.evaluate.report.document import Column, Content, Found, measured, number, whole
from dadlm.evaluate.report.subjects import Json, block_size, key_of, write_key


def section(found: list[Found]) -> doc.Parts:
    short = [_sentence(one.result) for one in found if any(map(_decided, _rows(one.result)))]
    return list(map(_table, found)), short


def _rows(result: Json) -> list[Json]:
    """The verdicts; none where planted pairs have shown that the judge cannot be trusted."""
    return result["rows"] if result.get("planted", {"trusted": True})["trusted"] else []


def _paper_side(result: Json) -> tuple[str, int]:
    """On which side DA-DLM stands, if the other is BD3LM, and the block size of both; none: ("", 0)."""
    a, b = result.get("model_a"), result.get("model_b")
    if a and b and block_size(a) == block_size(b) in paper.GENERATION:
        for side, one, other in (("a", a, b), ("b", b, a)):
            if (one["family"], other["family"]) == ("dadlm", "bd3lm"):
                return side, one["block_size"]
    return "", 0


def _table(one: Found) -> doc.Table:
    result = one.result
    side, size = _paper_side(result)
    ranked = sorted(
        ((key_of(row), row) for row in _rows(result)), key=lambda pair: subjects.rank_key(pair[0])
    )
    rows: list[tuple[str | None, list[Content]]] = [
        (key[0], [write_key(key), *_verdict(row), *([_paper_rate(size, key, side)] if side else [])])
        for key, row in ranked
    ]
    if len(rows) > 1:  # counts only: the same prompts in every row are not independent
        rows.append((None, ["all", *_verdict({**result, "win_rate": None}), *([None] if side else [])]))
    return doc.Table(
        [one],
        f"Win rate of {result['a']} against {result['b']}, judged by {result['judge']}.",
        [
            "Denoising",
            *(Column(name, "Ours") for name in ("Win rate, %", "Pairs", "Wins", "Losses", "Ties")),
            *([Column(f"block size {size}, %", "Paper", paper=True)] if side else []),
        ],
        doc.ruled(rows),
        differences=_differences(result) if side else None,
        notes=_notes(result),
    )


def _verdict(row: Json) -> Iterator[Content]:
    rate = row["win_rate"] if _decided(row) else None
    yield measured(rate, scale=100, best=bool(rate) and _leaning(rate) != 0)
    for name in ("pairs", "wins_a", "wins_b", "ties"):
        yield whole(row[name])


def _paper_rate(size: int, key: subjects.Key, side: str) -> Content:
    row = subjects.paper_row(size, key)
    if row is None:
        return None
    rate, low, high = row.win_rate, row.win_low, row.win_high
    if side == "b":  # the paper counts DA-DLM's wins, this table BD3LM's
        rate, low, high = 100 - rate, 100 - high, 100 - low
    return measured({"mean": rate, "low": low, "high": high})


def _differences(result: Json) -> Iterator[doc.Difference]:
    yield "data", result.get("source") or "unknown", "OpenWebText"
    if paper.JUDGE.lower() not in result["judge"].lower():
        yield "judge", result["judge"], paper.JUDGE
    yield "pairs per configuration", max(row["pairs"] for row in result["rows"]), paper.SAMPLES
    yield from subjects.models_differ([result["model_a"], result["model_b"]])


def _notes(result: Json) -> Iterator[str]:
    yield "Bold: the interval leaves out 50%."
    yield from in_words(result["planted"]) if "planted" in result else ()
    repeated = max(row["pairs"] - row.get("prompts", row["pairs"]) for row in result["rows"])
    if repeated:
        yield (
            f"In a configuration up to {whole(repeated)} pairs repeat the prompt of another: they are not "
            "independent, and the intervals are too narrow."
        )
    if result.get("missing"):
        yield f"{whole(result['missing'])} samples have no partner and were left out."
    share = result["first_position_share"]
    first = number(100 * share, 1)
    yield f"The continuation shown first was chosen in {first}% of the answers; 50% would be no preference."
    if not 0.25 <= share <= 0.75:
        yield "This judge goes by position: its ties say nothing about the texts."
    if result["unparsed"]:
        examples = ", ".join(map(repr, result.get("unparsed_examples", ())))
        such, count = f", such as {examples}" if examples else "", whole(result["unparsed"])
        yield f"{count} answers were neither A, B nor tie{such}; their pairs count as ties."
    if result.get("prompt_tokens") is not None:
        tokens = f"{whole(result['prompt_tokens'])} + {whole(result.get('completion_tokens'))} tokens"
        cost = "" if result.get("cost") is None else f", cost {number(result['cost'], 4)}"
        yield f"{whole(result.get('requests'))} requests, {tokens}{cost}."


def _sentence(result: Json) -> str:
    """Configurations are counted, not pooled: they continue the same prompts."""
    decided = [row for row in _rows(result) if _decided(row)]
    who = f"Judge ({result['judge']}), {result['a']} against {result['b']}"
    if len(decided) == 1:
        (row,) = decided
        cell = measured(row["win_rate"], scale=100)
        label, pairs = write_key(key_of(row)), whole(_decided(row))
        return f"{who}, {label}: wins {cell.text}% {cell.beside} of {pairs} decided pairs."
    leaning = [_leaning(row["win_rate"]) for row in decided]
    return (
        f"{who}: of {len(decided)} configurations the interval lies above 50% in {leaning.count(1)}, "
        f"below in {leaning.count(-1)}."
    )


def _leaning(rate: Json) -> int:
    """1: the interval lies above one half, -1: below, 0: on both sides."""
    return (rate["low"] > 0.5) - (rate["high"] < 0.5)


def _decided(row: Json) -> int:
    """Pairs that were no tie; without any there is no rate."""
    return row["wins_a"] + row["wins_b"]

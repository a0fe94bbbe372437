"""Tables of docs/results.md on generated texts and on speed, as Markdown, the paper's numbers beside ours.

A row that was not measured is left out; with no row a table is empty. Knows the results, not the page.

N block size, T denoising steps of a block.
"""

from dadlm.evaluate import paper
from dadlm.evaluate.report.document import NONE, between, number
from dadlm.evaluate.report.subjects import Key, key_of, paper_row, rank_key, write_key
from research.files import Facts, Results, rank
from research.plan import SIZES, Pair, pairs, plan
from research.tables import table, with_interval

_SYSTEMS = 'BD3LM / DA-DLM / DA-DLM with `nucleus="position"`'


def grid(result: Facts, N: int) -> dict[Key, dict[str, Facts]]:
    """Configuration → model → row, of one block size, in the paper's order."""
    found: dict[Key, dict[str, Facts]] = {}
    for row in sorted(result["rows"], key=lambda row: (rank_key(key_of(row)), rank(row, row["model"]))):
        if row["block_size"] == N:
            found.setdefault(key_of(row), {})[row["model"]] = row
    return found


def sizes_of(result: Facts) -> list[int]:
    return sorted({row["block_size"] for row in result["rows"] if row["block_size"]}, reverse=True)


def models_of(result: Facts, N: int) -> list[str]:
    """BD3LM first, the one of equal compute behind it, DA-DLM last."""
    return list(systems_of(result, N))


def systems_of(result: Facts, N: int) -> dict[str, Facts]:
    """One row of each model of a block size, in that order: what is the same in all of its rows."""
    rows = {row["model"]: row for row in result["rows"] if row["block_size"] == N}
    return dict(sorted(rows.items(), key=lambda item: rank(item[1], item[0])))


def quality_table(result: Facts, N: int) -> str:
    """MAUVE and the judge's perplexity of all models of a block size; bold: the interval lies apart."""
    models = systems_of(result, N)
    has_matched = any(row["matched"] for row in models.values())
    third = " / BD3LM-300K" if has_matched else ""
    head = ["", *(f"MAUVE, `{name}`" for name in models), f"paper: MAUVE BD3LM{third} / DA-DLM"]
    rows = []
    for key, found in grid(result, N).items():
        mauve = [_best(found, name, "mauve", 3, most=True) for name in models]
        judged = [_best(found, name, "judge_perplexity", 1, most=False) for name in models]
        rows.append([write_key(key), *mauve, _paper_mauve(N, key, has_matched), *judged])
    return table([*head, *(f"judge perplexity, `{name}`" for name in models)], rows)


def _best(found: dict[str, Facts], name: str, what: str, digits: int, most: bool) -> str:
    """A value with its interval, bold where that is apart from the others' on the better side."""
    ours = found[name][what] if name in found else None
    others = [row[what] for other, row in found.items() if other != name and row[what]]
    if ours is None:
        return NONE
    better = (ours["low"] > one["high"] if most else ours["high"] < one["low"] for one in others)
    text = number(ours["mean"], digits)
    return f"{f'**{text}**' if others and all(better) else text} {between(ours, digits)}"


def _paper_mauve(N: int, key: Key, has_matched: bool) -> str:
    row = paper_row(N, key)
    if row is None:
        return NONE
    values = [row.bd3lm_mauve, row.dadlm_mauve]
    if has_matched:
        values.insert(1, paper.BD3LM_300K_MAUVE[paper.GENERATION[N].index(row)])
    return " / ".join(number(value, 3) for value in values)


def tpf_table(result: Facts, N: int) -> str:
    """Tokens per forward pass: counted, and adjusted by what a step costs."""
    models = systems_of(result, N)
    head = ["", *(f"raw, `{name}`" for name in models)]
    adjusted = [name for name, row in models.items() if row["family"] == "dadlm"]
    rows = []
    for key, found in grid(result, N).items():
        raw = [
            with_interval(found[name]["raw_tpf_interval"] if name in found else None, 2) for name in models
        ]
        theirs = paper_row(N, key)
        beside = f"{number(theirs.bd3lm_tpf)} / {number(theirs.dadlm_tpf)}" if theirs else NONE
        rows.append([write_key(key), *raw, *(_adjusted(found.get(name)) for name in adjusted), beside])
    return table([*head, *(f"adjusted, `{name}`" for name in adjusted), "paper: adjusted"], rows)


def _adjusted(row: Facts | None) -> str:
    if row is None or row["adjusted_tpf"] is None:
        return NONE
    return with_interval(row["raw_tpf_interval"], 2, row["adjusted_tpf"] / row["raw_tpf"])


def references_table(result: Facts) -> str:
    """What all block sizes share: the AR models and the true continuations."""
    rows = [
        [
            f"`{row['model']}`",
            with_interval(row["mauve"]),
            with_interval(row["judge_perplexity"], 1),
            number(row["entropy"]),
        ]
        for row in result["rows"]
        if row["family"] == "ar"
    ]
    true = result["reference"]
    rows.append(["the true text", "1", with_interval(true["judge_perplexity"], 1), number(true["entropy"])])
    head = ["", f"MAUVE (paper: AR {paper.AR_MAUVE})", "judge perplexity", "entropy of a text's tokens, nats"]
    return table(head, rows)


def judge_table(results: Results) -> str:
    """Verdicts of the pairwise judge: a row for each configuration, a column for each pair of models."""

    def place(pair: Pair) -> tuple:
        judged = results.judge[pair]
        return rank(judged["model_a"], pair[0]), rank(judged["model_b"], pair[1])

    pairs = sorted(results.judge, key=place)
    found = {(key_of(row), pair): row for pair in pairs for row in results.judge[pair]["rows"]}
    keys = sorted({key for key, _ in found}, key=rank_key)
    head = ["wins / losses / ties, and how often the first text was chosen"]
    head += [f"`{one}` against `{other}`" for one, other in pairs]
    rows = [[write_key(key), *(_verdict(found.get((key, pair))) for pair in pairs)] for key in keys]
    return table(head, rows)


def _verdict(row: Facts | None) -> str:
    if row is None:
        return NONE
    counts = " / ".join(str(row[name]) for name in ("wins_a", "wins_b", "ties"))
    return f"{counts}, {100 * row['first_position_share']:.0f}%"


def latency_table(results: Results) -> str:
    batches = sorted(results.latency, reverse=True)
    found = {
        (row["model"]["name"], batch): row for batch in batches for row in results.latency[batch]["rows"]
    }
    head = ["", *(f"ms a step, batch {batch}" for batch in batches), "to BD3LM", "paper"]
    rows = []
    models = {name: row["model"] for (name, _), row in found.items()}
    for name in sorted(models, key=lambda name: rank(models[name], name)):
        times = [found.get((name, batch)) for batch in batches]
        first = times[0] or {}
        peaks = [number(one and one["memory_mib"]["peak"], 0) for one in times]
        ratio = number(first.get("ratio_to_bd3lm"), 2), number(_paper_ratio(models[name]), 2)
        rows.append([f"`{name}`", *(number(one and one["ms_median"]) for one in times), *ratio, *peaks])
    return table([*head, *(f"peak MiB, batch {batch}" for batch in batches)], rows)


def _paper_ratio(model: Facts) -> float | None:
    N = model.get("block_size") or 0
    theirs, base = (paper.LATENCY.get((family, N)) for family in (model["family"], "bd3lm"))
    return theirs.ms / base.ms if theirs and base else None


def speed_table(results: Results) -> str:
    """Tokens per second of whole texts, and how many times the AR model's."""
    rows = (results.speed or {"rows": []})["rows"]
    batches = sorted({row["batch"] for row in rows})
    ar = {row["batch"]: row["tokens_per_second"] for row in rows if row["family"] == "ar"}
    found = {(row["model"], row["configuration"], row["batch"]): row for row in rows}
    head = ["", "decoding", "TPF", *(cell for b in batches for cell in (f"tokens/s, batch {b}", "to AR"))]
    lines = []
    for name, decoding in dict.fromkeys((row["model"], row["configuration"]) for row in rows):
        of_batches = [found[name, decoding, batch] for batch in batches]
        speeds = [
            cell
            for batch, row in zip(batches, of_batches, strict=True)
            for cell in (
                number(row["tokens_per_second"], 0),
                number(row["tokens_per_second"] / ar[batch] if batch in ar else None),
            )
        ]
        lines.append([f"`{name}`", decoding, number(of_batches[-1]["tpf"]), *speeds])
    return table(head, lines)


def main_table(results: Results) -> str:
    """For README: the longest runs of each block size; texts at T = N / 2 without infilling."""
    rows = []
    for N in SIZES:
        pair = next((pair for pair in _longest_first(N) if pair in results.pairs), None)
        if pair is None:
            continue
        found = results.pairs[pair]
        values = [number(found[side], 3) for side in ("against_value", "value")]
        differences = [with_interval(found["difference"]), with_interval(found.get("bound_difference"))]
        texts = few_steps(results.generation, N) if results.generation else None
        rows.append([str(N), *values, *differences, *(texts or [NONE] * 3)])
    head = ["N", "BD3LM", "DA-DLM", "difference", "difference of the bounds", "TPF"]
    return table([*head, *(f"{what}, {_SYSTEMS}" for what in ("MAUVE", "judge perplexity"))], rows)


def _longest_first(N: int) -> list[Pair]:
    runs = plan()
    return [pair for pair in reversed(pairs()) if runs[pair[0]].block_size == N and not runs[pair[1]].matched]


def few_steps(result: Facts, N: int) -> list[str] | None:
    """Raw TPF, MAUVE and judge perplexity at T = N / 2 without infilling."""
    found = grid(result, N).get((f"T={N // 2}", None), {})
    plain = {
        row["family"]: row for row in found.values() if not row["matched"] and row["nucleus"] != "position"
    }
    if plain.keys() < {"bd3lm", "dadlm"}:
        return None
    position = next((row for row in found.values() if row["nucleus"] == "position"), None)
    three = [plain["bd3lm"], plain["dadlm"], position]
    mauve = " / ".join(number(row and row["mauve"] and row["mauve"]["mean"], 3) for row in three)
    judged = " / ".join(number(row and row["judge_perplexity"]["mean"], 1) for row in three)
    return [number(plain["dadlm"]["raw_tpf"]), mauve, judged]

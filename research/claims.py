"""The study's claims beside what it measured: each line is computed from the results, failures included.

N block size. Speed is adjusted tokens per forward pass (TPF).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dadlm.evaluate.report.document import number
from research.files import Facts, Results
from research.plan import Pair, pairs, plan
from research.tables import table, with_interval
from research.text_tables import grid, sizes_of, systems_of

LEAST_GAIN, MOST_LOSS, FEW_STEPS = 0.15, 0.01, 1.4
GAP, GAP_STEPS = 0.05, 100
HOLDS, FAILS, OPEN = "holds", "**does not hold**", "not decided"


@dataclass(frozen=True)
class Claim:
    what: str
    must: str
    measured: str
    verdict: str


def claims_table(results: Results) -> str:
    rows = ([one.what, one.must, one.measured, one.verdict] for one in claims(results))
    return table(["", "must be", "measured", ""], rows)


def claims(results: Results) -> Iterator[Claim]:
    runs = plan()
    for pair in (pair for pair in pairs() if pair in results.pairs):
        yield from _likelihood(pair, results.pairs[pair], runs[pair[1]].matched)
    if results.generation:
        for N in sizes_of(results.generation):
            yield from _texts(results.generation, N)
    yield from _training(results)


def _likelihood(pair: Pair, found: Facts, matched: bool) -> Iterator[Claim]:
    names, gain = " − ".join(f"`{name}`" for name in pair), found["difference"]
    must = "below 0" if matched else f"−{LEAST_GAIN} or less, interval below 0"
    enough = gain["high"] < 0 and (matched or gain["mean"] <= -LEAST_GAIN)
    yield Claim(f"reconstruction, {names}, nats", must, with_interval(gain), HOLDS if enough else FAILS)
    loss = found.get("bound_difference")
    if loss and not matched:
        must = f"upper end below +{MOST_LOSS}"
        verdict = HOLDS if loss["high"] < MOST_LOSS else FAILS
        yield Claim(f"bound, {names}, nats", must, with_interval(loss, 4), verdict)


def _texts(result: Facts, N: int) -> Iterator[Claim]:
    """DA-DLM against every BD3LM of this block size, where at least so many tokens are written a pass."""
    models = systems_of(result, N)
    for one in (name for name, row in models.items() if row["family"] == "dadlm"):
        for other in (name for name, row in models.items() if row["family"] == "bd3lm"):
            both = [rows for rows in grid(result, N).values() if {one, other} <= rows.keys()]
            pairs = [(rows[one], rows[other]) for rows in both if rows[one]["raw_tpf"] >= FEW_STEPS]
            names = f"`{one}` against `{other}`"
            if pairs:
                yield _judged(names, pairs)
                yield from _mauve(names, pairs)
            for what in ("mauve", "judge_perplexity"):
                yield from _frontier(names, what, [(rows[one], rows[other]) for rows in both])


def _judged(names: str, pairs: list[tuple[Facts, Facts]]) -> Claim:
    values = [(one["judge_perplexity"], other["judge_perplexity"]) for one, other in pairs]
    better = sum(one["mean"] < other["mean"] for one, other in values)
    apart = sum(one["high"] < other["low"] for one, other in values)
    measured = f"in {better} of {len(values)}, intervals apart in {apart}"
    what = f"judge perplexity at TPF ≥ {FEW_STEPS}, {names}"
    return Claim(what, "better in every configuration", measured, HOLDS if better == len(values) else FAILS)


def _mauve(names: str, pairs: list[tuple[Facts, Facts]]) -> Iterator[Claim]:
    values = [(one["mauve"], other["mauve"]) for one, other in pairs if one["mauve"] and other["mauve"]]
    if values:
        better = sum(one["low"] > other["high"] for one, other in values)
        worse = sum(one["high"] < other["low"] for one, other in values)
        measured = f"{better + worse} of {len(values)} apart: {better} better, {worse} worse"
        must = "better where intervals are apart, worse nowhere"
        verdict = FAILS if worse else HOLDS if better else OPEN
        yield Claim(f"MAUVE at TPF ≥ {FEW_STEPS}, {names}", must, measured, verdict)


def _frontier(names: str, what: str, pairs: list[tuple[Facts, Facts]]) -> Iterator[Claim]:
    """The best that a model gives at no less than a speed, compared wherever BD3LM's changes."""
    known = [(one, other) for one, other in pairs if one[what] and other[what] and one["adjusted_tpf"]]
    if not known:
        return
    ours = [_point(one, what) for one, _ in known]
    theirs = [_point(other, what) for _, other in known]
    fastest, limit = max(ours)[0], max(theirs)[0]
    speeds = sorted({FEW_STEPS, fastest, *(speed for speed, _ in theirs if FEW_STEPS <= speed <= fastest)})
    speeds = [speed for speed in speeds if FEW_STEPS <= speed <= min(fastest, limit)]
    won = [speed for speed in speeds if _best(ours, speed) > _best(theirs, speed)]
    measured = f"no faster than {number(fastest)}"
    if speeds:
        above = f", at {_range(won)}" if won else ""
        measured = f"above at {len(won)} of {len(speeds)} speeds up to {number(fastest)}{above}"
    holds = HOLDS if fastest >= limit else f"holds up to {number(fastest)} of {number(limit)}"
    title = {"mauve": "MAUVE", "judge_perplexity": "judge perplexity"}[what]
    must = f"above at every adjusted TPF ≥ {FEW_STEPS}"
    verdict = holds if speeds and len(won) == len(speeds) else FAILS
    yield Claim(f"frontier of {title}, {names}", must, measured, verdict)


def _range(speeds: list[float]) -> str:
    first, last = number(speeds[0]), number(speeds[-1])
    return first if first == last else f"{first} to {last}"


def _point(row: Facts, what: str) -> tuple[float, float]:
    """Speed and quality."""
    value = row[what]["mean"]
    return row["adjusted_tpf"], value if what == "mauve" else -value


def _best(points: list[tuple[float, float]], speed: float) -> float:
    return max(quality for fast, quality in points if fast >= speed)


def _training(results: Results) -> Iterator[Claim]:
    for name, run in results.of_role("probe").items():
        curve = run["curve"]
        reached = next((entry["step"] for entry in curve if (entry.get("gap") or 0) >= GAP), None)
        measured = f"step {reached}" if reached else f"not in {curve[-1]['step']} steps"
        must = f"about {GAP_STEPS} steps"
        verdict = HOLDS if reached and reached <= GAP_STEPS else FAILS
        yield Claim(f"gap of {GAP}, `{name}`", must, measured, verdict)

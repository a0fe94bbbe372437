"""What the study has to show, beside what it shows: each line computed from the results, failures included.

N block size. Speed is adjusted tokens per forward pass (TPF).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from study_results import Facts, Pair, Results, matched_pairs, pairs_of
from study_tables import is_probe, some, told
from study_text_tables import grid, models_of, sizes_of

from dadlm.evaluate.report.document import number

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
    return some(["", "must be", "measured", ""], rows)


def claims(results: Results) -> Iterator[Claim]:
    for pair in (pair for pair in pairs_of() if pair in results.pairs):
        yield from _likelihood(pair, results.pairs[pair])
    if results.generation:
        for N in sizes_of(results.generation):
            yield from _texts(results.generation, N)
    yield from _training(results)


def _likelihood(pair: Pair, found: Facts) -> Iterator[Claim]:
    names, gain = " − ".join(f"`{name}`" for name in pair), found["difference"]
    matched = pair in matched_pairs()
    must = "below 0" if matched else f"−{LEAST_GAIN} or less, interval below 0"
    enough = gain["high"] < 0 and (matched or gain["mean"] <= -LEAST_GAIN)
    yield Claim(f"reconstruction, {names}, nats", must, told(gain), HOLDS if enough else FAILS)
    loss = found.get("bound_difference")
    if loss and not matched:
        must = f"upper end below +{MOST_LOSS}"
        verdict = HOLDS if loss["high"] < MOST_LOSS else FAILS
        yield Claim(f"bound, {names}, nats", must, told(loss, 4), verdict)


def _texts(result: Facts, N: int) -> Iterator[Claim]:
    """DA-DLM against every BD3LM of this block size, where at least so many tokens are written a pass."""
    models = models_of(result, N)
    for one in (name for name in models if name.startswith("dadlm")):
        for other in (name for name in models if name.startswith("bd3lm")):
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
    told_ = f"in {better} of {len(values)}, intervals apart in {apart}"
    what = f"judge perplexity at TPF ≥ {FEW_STEPS}, {names}"
    return Claim(what, "better in every configuration", told_, HOLDS if better == len(values) else FAILS)


def _mauve(names: str, pairs: list[tuple[Facts, Facts]]) -> Iterator[Claim]:
    values = [(one["mauve"], other["mauve"]) for one, other in pairs if one["mauve"] and other["mauve"]]
    if values:
        better = sum(one["low"] > other["high"] for one, other in values)
        worse = sum(one["high"] < other["low"] for one, other in values)
        told_ = f"{better + worse} of {len(values)} apart: {better} better, {worse} worse"
        must = "better where intervals are apart, worse nowhere"
        verdict = FAILS if worse else HOLDS if better else OPEN
        yield Claim(f"MAUVE at TPF ≥ {FEW_STEPS}, {names}", must, told_, verdict)


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
    told_ = f"no faster than {number(fastest)}"
    if speeds:
        above = f", at {_range(won)}" if won else ""
        told_ = f"above at {len(won)} of {len(speeds)} speeds up to {number(fastest)}{above}"
    holds = HOLDS if fastest >= limit else f"holds up to {number(fastest)} of {number(limit)}"
    title = {"mauve": "MAUVE", "judge_perplexity": "judge perplexity"}[what]
    must = f"above at every adjusted TPF ≥ {FEW_STEPS}"
    verdict = holds if speeds and len(won) == len(speeds) else FAILS
    yield Claim(f"frontier of {title}, {names}", must, told_, verdict)


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
    for name in (name for name in results.curves if is_probe(name)):
        curve = results.curves[name]["curve"]
        reached = next((entry["step"] for entry in curve if (entry.get("gap") or 0) >= GAP), None)
        told_ = f"step {reached}" if reached else f"not in {curve[-1]['step']} steps"
        must = f"about {GAP_STEPS} steps"
        verdict = HOLDS if reached and reached <= GAP_STEPS else FAILS
        yield Claim(f"gap of {GAP}, `{name}`", must, told_, verdict)

"""Draw tokens from the nucleus of a large vocabulary without sorting it: a dozen short passes.

The nucleus is all tokens above a threshold and the first few of those that equal it. The threshold is found
by its bits, three at a time: a pass sums the mass above seven thresholds at once. The draw is the inverse CDF
in the order of ids. A row is cut into segments with a program each, so that a single row does not keep the
whole device waiting; what the segments found is joined at the start of the next pass. `sample.draw_tokens`
is the torch twin.

n rows, V vocabulary, S segments of a row.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_SEGMENT = 4096
_TURNS = 10  # of three bits; weights are at most 1.0, whose bits stay below 2 ** 30


def draw(
    logits: Tensor,
    uniform: Tensor,
    scale: float | Tensor,
    top_p: float | Tensor,
    crossing: bool | Tensor,
    which: Tensor | slice | None = None,
) -> Tensor:
    """Ids [n] from fp32 logits [n, V]; `crossing` keeps the token that crosses top_p (the standard rule).

    `scale` is 1 / temperature. With `which` [n] all three are tensors, of which it says the entries: fp32,
    fp64 (infinite: cut off nothing) and int32.
    """
    (n, V), device = logits.shape, logits.device
    if isinstance(which, slice):
        which = torch.arange(n, device=device)
    EACH = which is not None
    cut = EACH or top_p < 1
    S = triton.cdiv(V, _SEGMENT)
    P = triton.next_power_of_2(S)
    tops = torch.empty(n, P, device=device, dtype=torch.float32)
    sums = torch.empty(n, P, device=device, dtype=torch.float64)
    own = uniform if which is None else which.contiguous()
    _top[(n, P)](logits, tops, V, P, _SEGMENT)
    _sum[(n, P)](logits, tops, sums, V, P, scale, own, _SEGMENT, EACH)
    # Every turn reads what the one before it wrote and writes beside it.
    threshold = torch.empty(_TURNS + 1, n, device=device, dtype=torch.int32)
    masses = torch.empty(_TURNS, n, P, 8, device=device, dtype=torch.float64)
    # A number handed to a kernel would be rounded to single precision, which decides ties.
    share = top_p if EACH else torch.full((1,), top_p, device=device, dtype=torch.float64)
    common = (logits, tops, sums, share, threshold, masses, V, P, n, scale, own)
    for turn in range(_TURNS if cut else 0):
        _turn[(n, P)](*common, turn, _SEGMENT, EACH)
    above = torch.empty(n, P, device=device, dtype=torch.float64)
    ties = torch.empty(n, P, device=device, dtype=torch.int32)
    _count[(n, P)](*common, above, ties, cut, _TURNS, _SEGMENT, EACH)
    out = torch.empty(n, device=device, dtype=torch.int64)
    rule = (crossing, cut, True) if EACH else (out, cut, crossing)
    _pick[(n,)](*common, above, ties, uniform, out, *rule, _TURNS, _SEGMENT, EACH)
    return out


@triton.jit
def _load(logits, row, segment, V, SIZE: tl.constexpr):
    place = segment * SIZE + tl.arange(0, SIZE)
    return place, tl.load(logits + row.to(tl.int64) * V + place, mask=place < V, other=-float("inf"))


@triton.jit
def _weights(logits, tops, row, segment, V, P, scale, which, SIZE: tl.constexpr, EACH: tl.constexpr):
    """Places and weights of a segment: exp of logits below the row's maximum, with bits in order of value."""
    place, x = _load(logits, row, segment, V, SIZE)
    # A loop over the segments' maxima would need their number at compile time; a vector does not.
    top = tl.max(
        tl.load(tops + row * P + tl.arange(0, 64), mask=tl.arange(0, 64) < P, other=-float("inf")), 0
    )
    if EACH:
        scale = tl.load(scale + tl.load(which + row))
    return place, tl.exp((x - top) * scale)


@triton.jit
def _wanted(sums, share, which, row, P, EACH: tl.constexpr):
    """The mass that the nucleus of a row has to reach."""
    lane = tl.arange(0, 64)
    total = tl.sum(tl.load(sums + row * P + lane, mask=lane < P, other=0.0), 0)
    if EACH:
        share = share + tl.load(which + row)
    return total * tl.load(share)


@triton.jit
def _threshold_after(turn, threshold, masses, sums, share, which, row, P, n, EACH: tl.constexpr):
    """The threshold when `turn` turns are over: as many eighths up as still hold enough mass."""
    before = tl.load(threshold + (turn - 1) * n + row)
    lane, part = tl.arange(0, 64)[:, None], tl.arange(0, 8)[None, :]
    found = tl.load(
        masses + (((turn - 1) * n + row) * P + lane) * 8 + part, mask=(lane < P) & (part > 0), other=0.0
    )
    enough = (tl.sum(found, 0) >= _wanted(sums, share, which, row, P, EACH)) & (tl.arange(0, 8) > 0)
    return before + (tl.sum(enough.to(tl.int32), 0) << (27 - 3 * (turn - 1)))


@triton.jit
def _top(logits, tops, V, P, SIZE: tl.constexpr):
    row, segment = tl.program_id(0), tl.program_id(1)
    _, x = _load(logits, row, segment, V, SIZE)
    tl.store(tops + row * P + segment, tl.max(x, 0))


@triton.jit
def _sum(logits, tops, sums, V, P, scale, which, SIZE: tl.constexpr, EACH: tl.constexpr):
    row, segment = tl.program_id(0), tl.program_id(1)
    _, w = _weights(logits, tops, row, segment, V, P, scale, which, SIZE, EACH)
    tl.store(sums + row * P + segment, tl.sum(w.to(tl.float64), 0))


@triton.jit
def _turn(
    logits, tops, sums, share, threshold, masses, V, P, n, scale, which, turn,
    SIZE: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    row, segment = tl.program_id(0), tl.program_id(1)
    _, w = _weights(logits, tops, row, segment, V, P, scale, which, SIZE, EACH)
    low = 0
    if turn > 0:
        low = _threshold_after(turn, threshold, masses, sums, share, which, row, P, n, EACH)
    if segment == 0:
        tl.store(threshold + turn * n + row, low)
    part = (w.to(tl.int32, bitcast=True) - low) >> (27 - 3 * turn)
    here = masses + ((turn * n + row) * P + segment) * 8
    w = w.to(tl.float64)
    for eighth in tl.static_range(1, 8):
        tl.store(here + eighth, tl.sum(tl.where(part >= eighth, w, 0.0), 0))


@triton.jit
def _count(
    logits, tops, sums, share, threshold, masses, V, P, n, scale, which, above, ties,
    CUT: tl.constexpr, TURNS: tl.constexpr, SIZE: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """The mass of a segment above the threshold, and how many of its tokens equal it."""
    row, segment = tl.program_id(0), tl.program_id(1)
    place, w = _weights(logits, tops, row, segment, V, P, scale, which, SIZE, EACH)
    low = 0
    if CUT:
        low = _threshold_after(TURNS, threshold, masses, sums, share, which, row, P, n, EACH)
    if segment == 0:
        tl.store(threshold + TURNS * n + row, low)
    bits = w.to(tl.int32, bitcast=True)
    tl.store(above + row * P + segment, tl.sum(tl.where(bits > low, w, 0.0).to(tl.float64), 0))
    tl.store(ties + row * P + segment, tl.sum(((bits == low) & (place < V) & (w > 0)).to(tl.int32), 0))


@triton.jit
def _pick(
    logits, tops, sums, share, threshold, masses, V, P, n, scale, which, above, ties, uniform, out, crossing,
    CUT: tl.constexpr, CROSSING: tl.constexpr, TURNS: tl.constexpr, SIZE: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    lane = tl.arange(0, 64)
    low = tl.load(threshold + TURNS * n + row)
    segment_above = tl.load(above + row * P + lane, mask=lane < P, other=0.0)
    segment_ties = tl.load(ties + row * P + lane, mask=lane < P, other=0)
    edge = tl.sum((tl.zeros([1], tl.int32) + low).to(tl.float32, bitcast=True).to(tl.float64), 0)
    equals = 0  # how many of the tokens that equal the threshold belong to the nucleus, lowest ids first
    if CUT:
        total_above = tl.sum(segment_above, 0)
        room = (_wanted(sums, share, which, row, P, EACH) - total_above) / edge
        if EACH:
            room = tl.where(edge == 0.0, 0.0, room)  # nothing is cut off, and nothing lies on the edge
        # Without the crossing token, the most probable one always stays.
        narrow = tl.floor(room).to(tl.int32)
        narrow = tl.where(total_above == 0.0, tl.maximum(narrow, 1), narrow)
        if EACH:
            equals = tl.where(
                tl.load(crossing + tl.load(which + row)) != 0, tl.ceil(room).to(tl.int32), narrow
            )
        elif CROSSING:
            equals = tl.ceil(room).to(tl.int32)
        else:
            equals = narrow
    ties_before = tl.cumsum(segment_ties, 0) - segment_ties
    in_ties = tl.minimum(tl.maximum(equals - ties_before, 0), segment_ties)
    mass = segment_above + in_ties.to(tl.float64) * edge
    reached = tl.cumsum(mass, 0)
    goal = tl.load(uniform + row).to(tl.float64) * tl.sum(mass, 0)
    # Rounding must not step past the last possible segment, nor past its last possible token.
    segment = tl.sum((reached <= goal).to(tl.int32), 0)
    segment = tl.minimum(segment, tl.max(tl.where(mass > 0, lane, 0), 0))
    chosen = lane == segment
    passed = tl.sum(tl.where(chosen, reached - mass, 0.0), 0)
    before = tl.sum(tl.where(chosen, ties_before, 0), 0)
    place, w = _weights(logits, tops, row, segment, V, P, scale, which, SIZE, EACH)
    bits = w.to(tl.int32, bitcast=True)
    tie = ((bits == low) & (place < V) & (w > 0)).to(tl.int32)
    inside = (bits > low) | ((tie == 1) & (before + tl.cumsum(tie, 0) - tie < equals))
    q = tl.where(inside, w, 0.0).to(tl.float64)
    found = segment * SIZE + tl.sum((passed + tl.cumsum(q, 0) <= goal).to(tl.int32), 0)
    # Nor may it fall before the first one.
    first = tl.min(tl.where(inside, place, V), 0)
    last = tl.max(tl.where(inside, place, 0), 0)
    tl.store(out + row, tl.maximum(tl.minimum(found, last), first).to(tl.int64))

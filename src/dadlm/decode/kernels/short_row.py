"""The nucleus of a vocabulary that one program holds in its registers: one launch where `nucleus` needs many.

As there, the nucleus is all tokens above a threshold, and the first few of those that equal it.
`sample.draw_each` and `position_nucleus.inside_together` are the torch twins.

n rows, K candidates, V vocabulary.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def draw(
    logits: Tensor,
    uniform: Tensor,
    scale: Tensor,
    top_p: Tensor,
    crossing: Tensor,
    which: Tensor | slice = slice(None),
) -> Tensor:
    """Ids [n] from fp32 logits [n, V]; `crossing` keeps the token that crosses top_p (the standard rule).

    scale, 1 / temperature, is fp32, top_p fp64 (infinite: cut off nothing), crossing int32, and `which` [n]
    says the entries of the three; a slice: those of all rows in order.
    """
    n, V = logits.shape
    out = torch.empty(n, device=logits.device, dtype=torch.int64)
    size, warps = size_of(V)
    listed = isinstance(which, Tensor)
    own = which.contiguous() if isinstance(which, Tensor) else out
    _draw[(n,)](logits, uniform, scale, top_p, crossing, own, out, V, size, listed, num_warps=warps)
    return out


def inside_together(
    logits: Tensor, prior: Tensor, temperature: Tensor, top_p: Tensor
) -> tuple[Tensor, Tensor]:
    """Which tokens [n, V] lie in the standard nucleus of all candidates together, and the share [n, K] of
    each candidate's own, from fp32 logits [n, K, V]; prior is fp32 [n, K], temperature fp32 [n], top_p fp64
    [n]."""
    n, K, V = logits.shape
    inside = torch.empty(n, V, device=logits.device, dtype=torch.bool)
    mass = torch.empty(n, K, device=logits.device, dtype=torch.float32)
    size, warps = size_of(V)
    _together[(n,)](logits, prior, temperature, top_p, inside, mass, V, K, size, num_warps=warps)
    return inside, mass


def size_of(vocabulary: int) -> tuple[int, int]:
    """Of a program's block, and its warps: 32 numbers a thread were the fastest (docs/performance.md)."""
    size = triton.next_power_of_2(vocabulary)
    return size, min(16, max(4, size // 1024))


@triton.jit
def nucleus_of(weight, top_p, standard, SIZE: tl.constexpr):
    """Which of the weights lie in the nucleus: fp32 [SIZE], at most 1, 0 behind the vocabulary."""
    exact = weight.to(tl.float64)
    bits = weight.to(tl.int32, bitcast=True)  # in the order of the values, which are not negative
    total = tl.sum(exact, 0)
    wanted = total * top_p
    # The largest threshold above which enough lies, by false position (Illinois): enough lies above `low`,
    # and not above `high`; both are weights of tokens, or next to one. At first less than may be cut off lies
    # below `low`.
    least = tl.maximum((total - wanted) / (2 * SIZE), 0.0).to(tl.float32)
    low, high = least.to(tl.int32, bitcast=True), 1 << 30  # 1.0 as an integer is below
    high = tl.where(wanted > total, low + 1, high)
    over, under, side = total - wanted, -wanted, 0
    while high - low > 1:
        step = ((high - low).to(tl.float64) * over / (over - under)).to(tl.int32)
        trial = low + tl.minimum(tl.maximum(step, 1), high - low - 1)
        is_above = bits >= trial
        beyond = tl.sum(tl.where(is_above, exact, 0.0), 0) - wanted
        if beyond >= 0:
            low, over = tl.min(tl.where(is_above, bits, 1 << 30), 0), beyond
            under *= tl.where(side == 1, 0.5, 1.0)
            side = 1
        else:
            high, under = tl.max(tl.where(is_above, 0, bits), 0) + 1, beyond
            over *= tl.where(side == -1, 0.5, 1.0)
            side = -1
    above = tl.sum(tl.where(bits > low, exact, 0.0), 0)
    tie = (bits == low) & (weight > 0)
    edge = tl.max(tl.where(tie, exact, 0.0), 0)
    # Nothing lies on the edge where nothing is cut off.
    room = tl.where(edge > 0, (wanted - above) / tl.where(edge > 0, edge, 1.0), 0.0)
    narrow = tl.floor(room).to(tl.int32)
    narrow = tl.where(above == 0.0, tl.maximum(narrow, 1), narrow)
    equals = tl.where(standard, tl.ceil(room).to(tl.int32), narrow)
    rank = tl.cumsum(tie.to(tl.int32), 0) - 1
    return (bits > low) | (tie & (rank < equals))


@triton.jit
def drawn_of(weight, uniform, top_p, standard, V, SIZE: tl.constexpr):
    """The place that a uniform number in [0, 1) draws from the nucleus of V weights: see `nucleus_of`."""
    place = tl.arange(0, SIZE)
    inside = nucleus_of(weight, top_p, standard, SIZE)
    reached = tl.cumsum(tl.where(inside, weight, 0.0).to(tl.float64), 0)
    found = tl.sum((reached <= uniform.to(tl.float64) * tl.max(reached, 0)).to(tl.int32), 0)
    # Rounding must not step past the last possible token, nor fall before the first one.
    first, last = tl.min(tl.where(inside, place, V), 0), tl.max(tl.where(inside, place, 0), 0)
    return tl.maximum(tl.minimum(found, last), first)


@triton.jit
def _draw(logits, uniform, scale, top_p, crossing, which, out, V, SIZE: tl.constexpr, LISTED: tl.constexpr):
    row, place = tl.program_id(0), tl.arange(0, SIZE)
    own = row.to(tl.int64)
    if LISTED:
        own = tl.load(which + row)
    x = tl.load(logits + row.to(tl.int64) * V + place, mask=place < V, other=-float("inf"))
    weight = tl.exp((x - tl.max(x, 0)) * tl.load(scale + own))
    p, standard = tl.load(top_p + own), tl.load(crossing + own) != 0
    found = drawn_of(weight, tl.load(uniform + row), p, standard, V, SIZE)
    tl.store(out + row, found.to(tl.int64))


@triton.jit
def _emitted(logits, k, row, V, K, temperature, SIZE: tl.constexpr):
    """The distribution of a candidate, fp32 [SIZE]."""
    place = tl.arange(0, SIZE)
    here = logits + (row.to(tl.int64) * K + k) * V + place
    x = tl.load(here, mask=place < V, other=-float("inf")) / temperature
    weight = tl.exp(x - tl.max(x, 0))
    return weight / tl.sum(weight, 0)


@triton.jit
def _together(logits, prior, temperature, top_p, inside, mass, V, K, SIZE: tl.constexpr):
    row, place = tl.program_id(0), tl.arange(0, SIZE)
    t = tl.load(temperature + row)
    together = tl.zeros([SIZE], tl.float32)
    for k in range(K):
        together += tl.load(prior + row * K + k) * _emitted(logits, k, row, V, K, t, SIZE)
    p, real = tl.load(top_p + row), place < V
    chosen = tl.where(p < float("inf"), nucleus_of(together, p, True, SIZE) & real, real)
    tl.store(inside + row.to(tl.int64) * V + place, chosen, mask=real)
    for k in range(K):
        left = tl.where(chosen, _emitted(logits, k, row, V, K, t, SIZE), 0.0)
        tl.store(mass + row * K + k, tl.sum(left.to(tl.float64), 0).to(tl.float32))

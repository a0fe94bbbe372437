"""Tokens from logits: temperature, nucleus, inverse CDF. The same uniform number gives the same token.

No vocabulary is sorted: the nucleus is all that lies above a threshold, which is found among the largest
weights or, where shapes must not depend on the data, bit by bit. On CUDA a draw is one Triton launch where a
program can hold the vocabulary (`kernels.short_row`), and a dozen short ones where not (`kernels.nucleus`).

V vocabulary; leading dimensions are free.
"""

import numpy as np
import torch
from torch import Tensor

from dadlm.decode.batched_settings import BatchedSettings
from dadlm.model import kernels

_LARGEST = 64 * 4096  # vocabulary that the kernel has segments for
LONGEST = 16384
"""Vocabulary that a program can hold in its registers."""
_SOME = 1024  # weights that are looked at first
_TOP_BIT = 29  # weights are at most 1.0, whose bits as an integer stay below 2 ** 30


def draw_tokens(logits: Tensor, uniform: Tensor, temperature: float, top_p: float, rule: str) -> Tensor:
    """Token ids [...] from fp32 logits [..., V]; `draw_each` is the same with settings of each draw."""
    if temperature == 0:
        return most_probable(logits)
    temperature = max(temperature, 1e-30)
    if kernels.takes(logits) and logits.shape[-1] <= _LARGEST:
        from dadlm.decode.kernels.nucleus import draw as draw_fused

        flat = (logits.reshape(-1, logits.shape[-1]).contiguous(), uniform.reshape(-1).contiguous())
        return draw_fused(*flat, 1.0 / temperature, top_p, rule != "bd3lm").view(uniform.shape)
    weight = ((logits - logits.amax(-1, keepdim=True)) / temperature).exp()
    return draw(nucleus(weight, top_p, rule), uniform)


def draw_each(
    logits: Tensor,
    uniform: Tensor,
    settings: BatchedSettings,
    row: Tensor | slice,
    cold: bool,
    top_k: int = 0,
) -> Tensor:
    """Token ids [n] from fp32 logits [n, V], by the settings of their rows [n].

    `cold` says that a temperature may be 0, `top_k` the largest of these rows (0: none has one).
    """
    if top_k:
        logits = logits.masked_fill(~in_top_k(logits, settings.top_k[row], top_k), -torch.inf)
    if kernels.takes(logits) and logits.shape[-1] <= _LARGEST:
        if logits.shape[-1] <= LONGEST:
            from dadlm.decode.kernels.short_row import draw as draw_fused
        else:
            from dadlm.decode.kernels.nucleus import draw as draw_fused

        how = settings.inverse_temperature, settings.top_p, settings.standard
        drawn = draw_fused(logits.contiguous(), uniform.contiguous(), *how, row)
    else:
        drawn = draw(weights(logits, settings, row), uniform)
    return torch.where(settings.cold[row], most_probable(logits), drawn) if cold else drawn


def weights(logits: Tensor, settings: BatchedSettings, row: Tensor | slice) -> Tensor:
    """What `draw_each` draws from where the temperature is not 0: fp32 [n, V], at most 1, not normalised."""
    return cut(
        ((logits - logits.amax(-1, keepdim=True)) / settings.temperature[row, None]).exp(), settings, row
    )


def cut(weight: Tensor, settings: BatchedSettings, row: Tensor | slice) -> Tensor:
    """Set to zero what lies outside the nucleus of weight [n, V] in [0, 1], by the settings of its rows."""
    return _nucleus(weight, settings.top_p[row, None], settings.standard[row, None] != 0)


def nucleus(weight: Tensor, top_p: float, rule: str = "standard") -> Tensor:
    """Set to zero what lies outside the nucleus of unnormalised fp32 weight [..., V] in [0, 1].

    standard: the smallest set whose share reaches top_p. bd3lm: the token that crosses top_p is left out
    too, unless it is the first. Ties go to the lowest id.
    """
    return weight if top_p >= 1 else _nucleus(weight, top_p, rule != "bd3lm")


def in_top_k(logits: Tensor, top_k: Tensor, most: int) -> Tensor:
    """Which tokens [n, V] are the k likeliest by logits [n, V], each row's by its own top_k [n] (0: all are),
    at most `most`. Ties go to the lowest id."""
    largest = logits.topk(min(most, logits.shape[-1])).values
    edge = largest.gather(1, (top_k[:, None] - 1).clamp(0, largest.shape[1] - 1))
    above, tie = logits > edge, logits == edge
    inside = above | (tie & (tie.cumsum(-1) <= top_k[:, None] - above.sum(-1, keepdim=True)))
    return inside | (top_k[:, None] == 0)


def in_nucleus(weight: Tensor, top_p: Tensor, top_k: Tensor | None = None) -> Tensor:
    """Which tokens [n, V] lie in the standard nucleus of weight [n, V], each row's by its own fp64 top_p [n],
    which is infinite where nothing is cut off; of its top_k [n] largest (0: of all), if given.

    By a sort: where the set itself is wanted, it launches a tenth of the kernels that the bits would.
    """
    largest, order = weight.sort(stable=True, dim=-1, descending=True)
    mass = largest.cumsum(-1, dtype=torch.float64)
    before = mass - largest
    if top_k is None:
        inside = before < top_p[:, None] * mass[:, -1:]
    else:
        V = weight.shape[-1]
        most = torch.where(top_k > 0, top_k, V).clamp(max=V)[:, None]
        inside = before < top_p[:, None] * mass.gather(1, most - 1)
        inside &= torch.arange(V, device=weight.device) < most
    return torch.zeros_like(inside).scatter(-1, order, inside)


def _nucleus(weight: Tensor, top_p: float | Tensor, standard: bool | Tensor) -> Tensor:
    exact = weight.double()
    wanted = exact.sum(-1, keepdim=True) * top_p
    bits = weight.contiguous().view(torch.int32)  # in the order of the values, which are not negative
    threshold = _by_largest(weight, wanted) if weight.device.type == "cpu" else _by_bits(exact, bits, wanted)
    above = exact.masked_fill(bits <= threshold, 0).sum(-1, keepdim=True)
    edge = threshold.view(torch.float32).double()
    tie = bits == threshold
    rank = tie.cumsum(-1) - 1
    room = (wanted - above) / edge
    narrow = torch.where(above == 0, room.floor().clamp(min=1), room.floor())
    if isinstance(standard, Tensor):
        equals = torch.where(standard, room.ceil(), narrow)
    else:
        equals = room.ceil() if standard else narrow
    return weight * ((bits > threshold) | (tie & (rank < equals)))


def _by_bits(exact: Tensor, bits: Tensor, wanted: Tensor) -> Tensor:
    """The largest threshold [..., 1] at and above which enough of the weights [..., V] lies, as bits; in
    steps whose shapes do not depend on the data."""
    threshold = torch.zeros_like(bits[..., :1])
    for bit in range(_TOP_BIT, -1, -1):
        trial = threshold | (1 << bit)
        enough = exact.masked_fill(bits < trial, 0).sum(-1, keepdim=True) >= wanted
        threshold = torch.where(enough, trial, threshold)
    return threshold


def _by_largest(weight: Tensor, wanted: Tensor) -> Tensor:
    """The same from the largest weights, of which some are enough as a rule; a fortieth of the time."""
    rows, reached = weight.reshape(-1, weight.shape[-1]), wanted.reshape(-1, 1)
    found = _where_enough(rows.topk(min(_SOME, rows.shape[1])).values, reached)
    lacking = ((found < 0) & reached.isfinite())[:, 0]  # infinite: nothing is cut off, and none is enough
    if bool(lacking.any()):  # NumPy sorts several times faster than torch
        whole = torch.from_numpy(np.sort(rows[lacking].numpy(), axis=-1)).flip(-1)
        found[lacking] = _where_enough(whole, reached[lacking])
    return found.clamp(min=0).view(wanted.shape).view(torch.int32)


def _where_enough(largest: Tensor, wanted: Tensor) -> Tensor:
    """[n, 1]: the weight at which the largest ones [n, some], in order, reach what is wanted; else -1."""
    short = (largest.double().cumsum(-1) < wanted).sum(-1, keepdim=True)
    last = largest.shape[1] - 1
    return torch.where(short <= last, largest.gather(-1, short.clamp(max=last)), -1.0)


def draw(weight: Tensor, uniform: Tensor) -> Tensor:
    """Ids [...] by inverse CDF of unnormalised weight [..., V] at uniform [...] in [0, 1)."""
    total = weight.double().cumsum(-1)
    id_ = (total <= (uniform.double() * total[..., -1])[..., None]).sum(-1)
    place = torch.arange(weight.shape[-1], device=id_.device)
    last = torch.where(weight > 0, place, 0).amax(-1)
    return torch.minimum(id_, last)  # rounding must not step past the last possible token


def most_probable(logits: Tensor) -> Tensor:
    """Argmax [...] of logits [..., V]; ties go to the lowest id."""
    place = torch.arange(logits.shape[-1], device=logits.device)
    best = logits == logits.amax(-1, keepdim=True)
    return torch.where(best, place, logits.shape[-1]).amin(-1)


def entropy_of(logits: Tensor) -> Tensor:
    """Entropy [...] in nats of logits [..., V]."""
    logp = logits.log_softmax(-1)
    return -(logp.exp() * logp.clamp(min=torch.finfo(logp.dtype).min)).sum(-1)

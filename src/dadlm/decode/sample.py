"""Tokens from logits: temperature, nucleus, inverse CDF. The same uniform number gives the same token.

V vocabulary; leading dimensions are free.
"""

import torch
from torch import Tensor


def nucleus(probability: Tensor, top_p: float, rule: str = "standard") -> Tensor:
    """Set to zero what lies outside the nucleus of probability [..., V]; ties go to the lowest id.

    standard: the smallest set whose mass reaches top_p. bd3lm: the token that crosses top_p is left out
    too, unless it is the first.
    """
    if top_p >= 1:
        return probability
    ordered, index = probability.sort(dim=-1, descending=True, stable=True)
    mass = ordered.cumsum(-1)
    before = mass - ordered
    keep = before < top_p if rule == "standard" else mass <= top_p
    keep[..., 0] = True
    return probability * torch.zeros_like(keep).scatter(-1, index, keep)


def draw(probability: Tensor, uniform: Tensor) -> Tensor:
    """Ids [...] by inverse CDF of unnormalised probability [..., V] at uniform [...] in [0, 1)."""
    total = probability.double().cumsum(-1)
    id_ = (total <= (uniform.double() * total[..., -1])[..., None]).sum(-1)
    place = torch.arange(probability.shape[-1], device=id_.device)
    last = torch.where(probability > 0, place, 0).amax(-1)
    return torch.minimum(id_, last)  # rounding must not step past the last possible token


def draw_tokens(logits: Tensor, uniform: Tensor, temperature: float, top_p: float, rule: str) -> Tensor:
    """Token ids [...] from logits [..., V]."""
    if temperature == 0:
        return most_probable(logits)
    logits = logits - logits.amax(-1, keepdim=True)  # before the division, which could overflow
    return draw(nucleus((logits / max(temperature, 1e-30)).softmax(-1), top_p, rule), uniform)


def most_probable(logits: Tensor) -> Tensor:
    """Argmax [...] of logits [..., V]; ties go to the lowest id."""
    place = torch.arange(logits.shape[-1], device=logits.device)
    best = logits == logits.amax(-1, keepdim=True)
    return torch.where(best, place, logits.shape[-1]).amin(-1)

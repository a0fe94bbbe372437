"""One call for all families: what training minimises, and what is reported beside it.

B rows, L tokens, G blocks (L - 1 single tokens for AR).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dadlm.model import Model
from dadlm.nodes import Rooms
from dadlm.noise import Noise
from dadlm.objective.ar import token_nll
from dadlm.objective.dag import block_scores, marginal_nll, path_nll
from dadlm.objective.factorised import block_nll, mdlm_nll


@dataclass(frozen=True)
class Losses:
    """Weighted negative log-likelihoods [B, G], to be summed and divided by the number of tokens."""

    train: Tensor
    """What training minimises; differentiable."""
    reconstruction: Tensor
    """Conditional reconstruction: the joint likelihood of the masked tokens, the paper's metric."""
    bound: Tensor
    """The same through per-token marginals: a valid bound for every family."""


def losses(
    model: Model,
    ids: Tensor,
    noise: Noise | None,
    power: float = 1.0,
    report: bool = True,
    rooms: Rooms | None = None,
    learned: Tensor | None = None,
) -> Losses:
    """Losses of rows ids [B, L] under the given noise (none for AR).

    Without `report` only `train` is meant to be read: what is reported beside it is not computed. With
    `rooms` nothing waits for the device. `learned` [B, L] are the positions that count (None: all): for AR
    they alone are scored, MDLM's rows end behind the last, and block-wise it is the noise that says it all.
    """
    if noise is None:
        nll = token_nll(model, ids, learned)
        return Losses(nll, nll.detach(), nll.detach())
    if model.config.family == "mdlm":
        length = None if learned is None else _ends(learned)
        nll = noise.weight * mdlm_nll(model, ids, noise.masked, rooms, length)
        return Losses(nll, nll.detach(), nll.detach())
    if model.config.family == "bd3lm":
        nll = noise.weight * block_nll(model, ids, noise.masked, rooms, noise.blocks)
        return Losses(nll, nll.detach(), nll.detach())
    scores = block_scores(model, ids, noise.masked, rooms, noise.blocks)
    train = noise.weight * path_nll(*scores, power=power)
    if not report:
        return Losses(train, train.detach(), train.detach())
    with torch.no_grad():
        nll = train.detach() if power == 1.0 else noise.weight * path_nll(*scores)
        return Losses(train, nll, noise.weight * marginal_nll(*scores))


def _ends(learned: Tensor) -> Tensor:
    """[B]: behind the last learned position."""
    return (learned * torch.arange(1, learned.shape[1] + 1, device=learned.device)).amax(1)

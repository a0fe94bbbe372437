"""The exact likelihood of a whole block in one pass: that of the sampler with one step per block (T = 1).

A pass over a fully masked block after clean text defines a distribution over all texts of the block; the
probability of one is the sum over all paths. By the chain rule it splits into one value a place, like AR's.

R rows, B rows of a batch, L tokens of a row, G blocks, N block size.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dadlm import dag
from dadlm.errors import ConfigError
from dadlm.model import Model
from dadlm.noise import Noise

NOTE = (
    "the exact likelihood of text that is written a whole block in one pass, with sampled paths, "
    "temperature 1 and top_p 1, given the first token of each row; by_place: the mean nats at each place of "
    "a block after the places before it, in all blocks but a row's first, whose first token is given"
)


def check_passes(model: Model, passes: int | None) -> None:
    if passes not in (None, 1):
        raise ConfigError(
            f"passes must be 1 (the exact likelihood of blocks written in one pass) or left out, got {passes}"
        )
    if passes and model.config.family == "mdlm":
        raise ConfigError(
            "an MDLM has no blocks, so one pass would write a whole row at once: leave --passes out, or "
            "measure a bd3lm or dadlm model"
        )


def place_nats(model: Model, ids: Tensor) -> Tensor:
    """[B, G, N]: -log q(token | those before it in its block), for rows ids [B, L] of a block model with
    each block masked as a whole; 0 at position 0, which is given."""
    masked = torch.ones_like(ids, dtype=torch.bool)
    masked[:, 0] = False
    scores = model(ids, Noise.of(masked))
    emission, transition = scores.emission_logp, scores.transition_logp
    if transition is None:  # one node a place: tokens depend on each other through token edges only
        return -emission.squeeze(-1)
    prefix = dag.prefix_logp(emission, transition)
    return -prefix.diff(dim=-1, prepend=torch.zeros_like(prefix[..., :1]))


def mean_by_place(pieces: Sequence[dict[str, Any]], blocks: int) -> list[float] | None:
    """Mean nats at each place [N], from sums over `blocks` blocks of each row; None where there are none."""
    sums = [piece["places"] for piece in pieces if piece["places"]]
    if not sums or not blocks:
        return None
    return (torch.tensor(sums, dtype=torch.float64).mean(0) / blocks).tolist()

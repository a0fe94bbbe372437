"""Entropy: every step keeps tokens, the least open first, as long as their entropies stay within a bound."""

import torch
from torch import Tensor

from dadlm.decode.samplers.base import Block, Proposal, Sampler, heads, surest


class Entropy(Sampler):
    name = "entropy"
    summary = "the tokens of lowest entropy, `bound` nats in all, at least one"
    options = ("bound",)
    sees_tokens = True
    sees_entropy = True

    def keep(self, block: Block, infilled: Tensor, settings, proposal: Proposal | None = None):
        assert proposal is not None
        return within_bound(block.masked, infilled, proposal, settings.bound[:, None]), block.step


def within_bound(masked: Tensor, infilled: Tensor, proposal: Proposal, bound: float | Tensor) -> Tensor:
    """Keep positions [B, N] in the order of their entropies while the sum stays within the bound (or each
    row's, [B, 1]), the first in any case; what is infilled comes first, and counts.

    Without token edges the tokens are drawn independently of each other. How much they should not have been
    is at most the sum less the largest entropy (entropy-bounded unmasking), so that one is free. With edges
    they are drawn from their joint, whose entropy is the sum: of every run of masked positions a beginning is
    kept, and the order is that of the entropies from the run's start on.
    """
    # In double precision, where the sums along a run cannot fall.
    entropy = torch.where(masked, proposal.entropy, 0.0).double().clamp(min=0.0)
    first = heads(masked) if proposal.chained else masked
    first = surest(first, -entropy, proposal.ending)
    rank = _along_runs(masked, entropy) if proposal.chained else entropy
    rank = rank.masked_fill(first, -1.0).masked_fill(infilled, -2.0).masked_fill(~masked, torch.inf)
    order = rank.sort(dim=1, stable=True).indices  # ties go to the lowest index
    spent = entropy.gather(1, order)
    total = spent.cumsum(1)
    if not proposal.chained:
        total = total - spent.cummax(1).values
    kept = torch.zeros_like(masked).scatter(1, order, total <= bound)
    return infilled | (masked & (kept | (first & ~infilled.any(1, keepdim=True))))


def _along_runs(masked: Tensor, entropy: Tensor) -> Tensor:
    """The sum [B, N] of the entropies of a run of masked positions up to each of them."""
    total = entropy.cumsum(1)
    return total - torch.where(masked, 0.0, total).cummax(1).values

"""What training minimises, and what is reported with it, for all families.

B rows, L tokens, G blocks (L - 1 single tokens for AR, one for MDLM), N block size, K candidates.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dadlm import dag
from dadlm.model import Model, Scores
from dadlm.nodes import PaddedSizes
from dadlm.noise import Noise
from dadlm.objective.marginals import blocks_of, check_chains, exact_or, token_marginals

__all__ = ["CHAINS", "Losses", "check_chains", "exact_or", "losses", "marginal_nll", "path_nll"]

CHAINS = 8
"""Enough for validation: the bound is a few hundredths of a nat loose, and costs about a pass more."""


@dataclass(frozen=True)
class Losses:
    """Weighted negative log-likelihoods [B, G], to be summed and divided by the number of tokens."""

    train: Tensor
    """What training minimises; differentiable."""
    reconstruction: Tensor
    """Conditional reconstruction: the joint likelihood of the masked tokens, the paper's metric."""
    bound: Tensor
    """The same through per-token marginals: a valid bound for every family. NaN if not asked for."""
    graph_gap: Tensor
    """What the graph alone adds: tokens one by one through the node priors, each after its true left
    neighbour where there are token edges, minus all paths. 0 while the K nodes of a group are alike."""
    by_chains: Tensor | None = None
    """[3, B, G]: the bound with a quarter, half and all of the chains, where chains were drawn."""
    next_token: Tensor | None = None
    """[B, L - 1]: that of the clean text read by an AR model, if asked for; differentiable, not weighted."""


def losses(
    model: nn.Module,
    ids: Tensor,
    noise: Noise | None,
    *,
    report: bool = True,
    sizes: PaddedSizes | None = None,
    loss_mask: Tensor | None = None,
    chains: int | None = CHAINS,
    seed: int = 0,
    next_tokens: bool = False,
) -> Losses:
    """Losses of rows ids [B, L] under the given noise (none for AR); see `Model.forward`. The model may be
    wrapped by DDP. Without `report` only the training loss is computed.

    `chains` are for the bound of models with token edges: how many to draw where exact marginals would cost
    much more (`exact_or`); 0: exact marginals; None: no bound. With `next_tokens` the loss of an AR model is
    computed too (`ModelConfig.causal_context`).
    """
    scores: Scores = model(ids, noise, sizes=sizes, loss_mask=loss_mask, next_tokens=next_tokens)
    weight = 1.0 if noise is None else noise.weight
    emission, transition = scores.emission_logp, scores.transition_logp
    assert emission is not None
    if transition is None:  # one node for each token: AR, MDLM, BD3LM
        nll = -emission.sum((-1, -2)) * weight
        apart = nll.detach()
    else:
        nll = path_nll(emission, transition) * weight
        apart = marginal_nll(emission.detach(), transition.detach()) * weight if report else nll.detach()
    next_token = None if scores.next_logp is None else -scores.next_logp
    found = Losses(nll, nll.detach(), apart, apart - nll.detach(), next_token=next_token)
    core: Any = getattr(model, "module", model)  # what DDP has wrapped
    if noise is None or core.head.edge is None:
        return found
    if chains is None or not report:
        return replace(found, bound=torch.full_like(apart, math.nan))
    with torch.no_grad(), _gathered(core):
        parts = _edge_bound(core, scores, ids, noise, chains, seed) * weight
    return replace(found, bound=parts[-1], by_chains=parts if len(parts) > 1 else None)


@contextmanager
def _gathered(model: nn.Module) -> Iterator[None]:
    """FSDP shards the weights again after every forward pass, and the vocabulary head is still needed."""
    if not hasattr(model, "unshard"):
        yield
        return
    model.unshard()  # type: ignore[operator]
    try:
        yield
    finally:
        model.reshard()  # type: ignore[operator]


def path_nll(emission_logp: Tensor, transition_logp: Tensor) -> Tensor:
    """[B, G]: -log of the sum over all paths of P(x, A), the path-marginal loss of DA-DLM."""
    return -dag.forward_logp(emission_logp, transition_logp)


def marginal_nll(emission_logp: Tensor, transition_logp: Tensor) -> Tensor:
    """[B, G]: the same tokens scored one by one, Σ_i -log Σ_k prior_i(k)·p(x_i | node k). Its distance to
    `path_nll` is all that the graph adds: zero while the K nodes of a group are alike."""
    return -(dag.node_marginals(transition_logp) + emission_logp).logsumexp(-1).sum(-1)


def _edge_bound(model: Model, scores: Scores, ids: Tensor, noise: Noise, chains: int, seed: int) -> Tensor:
    """[1, B, G]: Σ_i -log p(x_i) of each block, open left neighbours summed out; with chains [3, B, G]: of a
    quarter, half and all of them."""
    check_chains(chains)
    chains = exact_or(chains, model)
    target, masked, _ = noise.split_blocks(ids, model.config.block_size)
    blocks = blocks_of(scores.denoised, scores.transition_logp, target, ids, model.config.mask_id)
    groups = (4, 2, 1) if chains else (1,)
    dtype = torch.promote_types(scores.hidden.dtype, torch.float32)
    nll = torch.zeros(len(groups), *blocks.masked.shape, dtype=dtype, device=ids.device)
    for said in token_marginals(model, blocks, blocks.masked, chains=chains, seed=seed):
        token = blocks.ids[said.blocks, said.place, None, None]
        logp = said.logp.gather(2, token.expand(-1, said.logp.shape[1], 1)).squeeze(2)  # [n, C]
        for row, group in zip(nll, groups, strict=True):
            each = logp[:, None] if logp.shape[1] == 1 else logp.unflatten(1, (group, -1))
            row[said.blocks, said.place] = math.log(each.shape[-1]) - each.logsumexp(-1).mean(1)
    return nll.sum(-1).view(len(groups), *masked.shape[:2])

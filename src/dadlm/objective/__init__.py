"""What training minimises, and what is reported beside it, for all families.

B rows, L tokens, G blocks (L - 1 single tokens for AR, one for MDLM), N block size, K candidates.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from dadlm import dag
from dadlm.model import Scores
from dadlm.nodes import PaddedSizes
from dadlm.noise import Noise

__all__ = ["Losses", "losses", "marginal_nll", "path_nll"]


@dataclass(frozen=True)
class Losses:
    """Weighted negative log-likelihoods [B, G], to be summed and divided by the number of tokens."""

    train: Tensor
    """What training minimises; differentiable."""
    reconstruction: Tensor
    """Conditional reconstruction: the joint likelihood of the masked tokens, the paper's metric."""
    bound: Tensor
    """The same through per-token marginals: a valid bound for every family."""
    next_token: Tensor | None = None
    """[B, L - 1]: of the clean text as an AR model reads it, if asked for; differentiable, not weighted."""


def losses(
    model: nn.Module,
    ids: Tensor,
    noise: Noise | None,
    *,
    report: bool = True,
    sizes: PaddedSizes | None = None,
    loss_mask: Tensor | None = None,
    next_tokens: bool = False,
) -> Losses:
    """Losses of rows ids [B, L] under the given noise (none for AR); see `Model.forward`. The model may be
    wrapped by DDP. Without `report` the bound is not computed; with `next_tokens` the loss of an AR model is,
    too (`ModelConfig.causal_context`)."""
    scores: Scores = model(ids, noise, sizes=sizes, loss_mask=loss_mask, next_tokens=next_tokens)
    weight = 1.0 if noise is None else noise.weight
    emission, transition = scores.emission_logp, scores.transition_logp
    assert emission is not None
    next_token = None if scores.next_logp is None else -scores.next_logp
    if transition is None:  # tokens are independent of one another: AR, MDLM, BD3LM
        nll = -emission.sum((-1, -2)) * weight
        return Losses(nll, nll.detach(), nll.detach(), next_token)
    nll = path_nll(emission, transition) * weight
    bound = marginal_nll(emission.detach(), transition.detach()) * weight if report else nll.detach()
    return Losses(nll, nll.detach(), bound, next_token)


def path_nll(emission_logp: Tensor, transition_logp: Tensor) -> Tensor:
    """[B, G]: -log of the sum over all paths of P(x, A), the path-marginal loss of DA-DLM."""
    return -dag.forward_logp(emission_logp, transition_logp)


def marginal_nll(emission_logp: Tensor, transition_logp: Tensor) -> Tensor:
    """[B, G]: the same tokens scored one by one, Σ_i -log Σ_k prior_i(k)·p(x_i | node k). Its distance to
    `path_nll` is all that the graph adds: zero while the K nodes of a group are alike."""
    return -(dag.node_marginals(transition_logp) + emission_logp).logsumexp(-1).sum(-1)

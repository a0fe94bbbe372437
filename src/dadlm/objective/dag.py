"""The path-marginal loss of DA-DLM, and the bound through node marginals beside it.

B rows, L tokens, G blocks, N block size, K candidates.
"""

from torch import Tensor

from dadlm import dag
from dadlm.model import Context, Model
from dadlm.nodes import Rooms
from dadlm.objective.factorised import cut


def block_scores(
    model: Model, ids: Tensor, masked: Tensor, rooms: Rooms | None = None, chosen: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """emission_logp [B, G, N, K] of the true tokens and transition_logp [B, G, N, K, K] of every block,
    or of the `chosen` ones [B, J]."""
    context = Context()
    model.read(ids, context, only_context=True)
    blocks, hidden_tokens, first = cut(ids, masked, model.config.block_size, chosen)
    denoised = model.denoise(blocks, hidden_tokens, first, context, rooms=rooms)
    return model.emission_logp(denoised, blocks), model.transition_logp(denoised)


def path_nll(emission_logp: Tensor, transition_logp: Tensor, power: float = 1.0) -> Tensor:
    """[B, G]: -log of the sum over all paths of P(x, A).

    With power β it is -(1/β)·log Σ P(x, A)^β, which favours a few good paths over many equal ones and so
    pushes the candidates apart; β = 1 is the likelihood.
    """
    return -dag.forward_logp(power * emission_logp, power * transition_logp) / power


def marginal_nll(emission_logp: Tensor, transition_logp: Tensor) -> Tensor:
    """[B, G]: the same tokens scored one by one, Σ_i -log Σ_k prior_i(k)·p(x_i | node k).

    Its distance to `path_nll` is all that the graph adds: zero while the K nodes of a group are alike.
    """
    return -(dag.node_marginals(transition_logp) + emission_logp).logsumexp(-1).sum(-1)

"""Next-token cross-entropy: the exact negative log-likelihood of an AR model."""

from torch import Tensor

from dadlm.model import Model
from dadlm.nodes import select


def token_nll(model: Model, ids: Tensor, learned: Tensor | None = None) -> Tensor:
    """[B, L-1]: -log p(x_i | x_<i) of ids [B, L] for every position but the first.

    With `learned` [B, L] of these positions only: the others are 0 and do not go through the vocabulary head.
    """
    hidden, targets = model.read(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
    if learned is None:
        return -model.head.target_logp(hidden, targets).view(ids.shape[0], -1)
    heads = select(learned[:, 1:].flatten())
    logp = model.head.target_logp(heads.take(hidden), heads.take(targets))
    return -heads.put(logp).view(ids.shape[0], -1)

"""Next-token cross-entropy: the exact negative log-likelihood of an AR model."""

from torch import Tensor

from dadlm.model import Model


def token_nll(model: Model, ids: Tensor) -> Tensor:
    """[B, L-1]: -log p(x_i | x_<i) of ids [B, L] for every position but the first."""
    hidden = model.read(ids)[:, :-1]
    logp = model.head.target_logp(hidden.flatten(0, 1), ids[:, 1:].flatten())
    return -logp.view(ids.shape[0], -1)

"""What a model says of each position of partly masked rows, one by one: the view that masked-LM classes have.

B rows, L tokens, G blocks, N block size, K candidates, V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from dadlm import dag
from dadlm.model import Model
from dadlm.noise import Noise


def position_logp(model: Model, ids: Tensor, clean: Tensor | None = None) -> Tensor:
    """Log-probabilities [B, L, V] of ids [B, L] in which unknown tokens are the mask; the mask has -inf.

    Of the token at each position, or of the next one (ar); of a graph the marginals. Blocks see the blocks
    before them as `clean` has them, or as they stand.
    """
    if model.config.family in ("ar", "mdlm"):
        scores = model(ids, Noise.of(ids == model.config.mask_id), emissions=False)
        logp = model.head.token_logits(scores.hidden).log_softmax(-1)
    else:
        logp = _block_logp(model, ids, ids if clean is None else clean)
    return F.pad(logp, (0, 1), value=-torch.inf)


def _block_logp(model: Model, ids: Tensor, clean: Tensor) -> Tensor:
    N, mask, length = model.config.block_size, model.config.mask_id, ids.shape[1]
    # The tokens that fill up the last block are not known yet.
    ids, clean = (F.pad(x, (0, -length % N), value=mask) for x in (ids, clean))
    scores = model(ids, Noise.of(ids == mask), clean=clean, emissions=False)
    hidden = scores.nodes.groups(scores.nodes.to_slots(scores.hidden))
    if scores.transition_logp is None:
        prior = torch.zeros(hidden.shape[:-1], device=ids.device)
    else:
        prior = dag.node_marginals(scores.transition_logp)
    logp = torch.full((), -torch.inf, device=ids.device)
    for k in range(hidden.shape[3]):  # one at a time: K vocabularies at once would be K times the memory
        said = model.head.token_logits(hidden[:, :, :, k], k).log_softmax(-1)
        logp = torch.logaddexp(logp, prior[..., k, None] + said)
    return logp.flatten(1, 2)[:, :length]

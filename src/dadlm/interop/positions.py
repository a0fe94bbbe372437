"""What a model says of each position of partly masked rows, one by one: the view that masked-LM classes have.

B rows, L tokens, G blocks, N block size, K candidates, V vocabulary.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from dadlm import dag
from dadlm.model import Model, Scores
from dadlm.noise import Noise
from dadlm.objective import exact_or
from dadlm.objective.marginals import blocks_of, token_marginals

_CHAINS = 16


def position_logp(model: Model, ids: Tensor, clean: Tensor | None = None) -> Tensor:
    """Log-probabilities [B, L, V] of ids [B, L] in which unknown tokens are the mask; the mask has -inf.

    Of the token at each position, or of the next one (ar); of a graph the marginals, and of token edges those
    too, by sampled chains where the vocabulary is large (their gradient takes what was drawn as given).
    Blocks see the blocks before them as `clean` has them, or as they stand.
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
    if model.head.edge is not None:
        logp = _with_edges(model, scores, ids, clean, logp)
    return logp.flatten(1, 2)[:, :length]


def _with_edges(model: Model, scores: Scores, ids: Tensor, clean: Tensor, logp: Tensor) -> Tensor:
    """The same [B, G, N, V], but at masked positions as the tokens to their left make it."""
    N, V = model.config.block_size, model.config.mask_id
    graph = scores.denoised, scores.transition_logp, ids.view(len(ids), -1, N)
    blocks, found = blocks_of(*graph, clean, V), logp.flatten(0, 1)
    for said in token_marginals(model, blocks, blocks.masked, chains=exact_or(_CHAINS, V)):
        mean = said.logp.logsumexp(1) - math.log(said.logp.shape[1])
        found = found.index_put((said.blocks, torch.full_like(said.blocks, said.place)), mean)
    return found.view(logp.shape)

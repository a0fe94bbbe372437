"""A path and its tokens, given that each token lies in the nucleus of its position.

The nucleus of the drawn candidate alone reaches further down than that of the position: where one candidate
holds the likely tokens, nine tenths of another's are unlikely ones. Here the nucleus is taken of all
candidates of a position together, as a model without candidates would, and everything else follows from the
graph: a candidate whose tokens lie outside becomes as much less likely, and so do the links that lead to it.
The price is the head of every candidate instead of one.

B rows, N block size, K candidates, V vocabulary without the mask.
"""

import torch
from torch import Tensor

from dadlm import dag
from dadlm.decode.chain import left_at
from dadlm.decode.places import places, put
from dadlm.decode.predict import Choice, Prediction, at_path
from dadlm.decode.sample import LONGEST, draw_tokens, entropy_of, in_nucleus
from dadlm.model import Model, kernels
from dadlm.model.edge import on_the_way


def draw_in_position_nucleus(
    model: Model,
    prediction: Prediction,
    wanted: Tensor,
    uniform: tuple[Tensor, Tensor],
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor | None,
    capacity: int | None,
    sees_tokens: bool,
) -> Choice:
    """The path and, where `wanted` [B, N], its tokens and, for samplers that see them, their untempered
    probabilities.

    `uniform` for the path and for the tokens, [B, N] each; temperature is fp32 [B], top_p fp64 [B],
    top_k [B], or None where no row has one.
    """
    place = places(wanted, capacity)
    some = place.clamp(max=wanted.numel() - 1)
    row, hidden = some // wanted.shape[1], prediction.hidden.flatten(0, 1)[some]
    K = hidden.shape[1]
    logits = model.head.token_logits(hidden, torch.arange(K, device=hidden.device))  # [n, K, V]
    temperature, top_k = temperature[row], None if top_k is None else top_k[row]
    prior = dag.node_marginals(prediction.transition_logp).exp().flatten(0, 1)[some]
    inside, left = inside_together(logits, prior, temperature, top_p[row], top_k)
    links = dag.tilted(prediction.transition_logp, put(left.log(), place, wanted))
    path = dag.sample_path(links, uniform[0])
    node = path.flatten()[some]
    own = at_path(logits[None], node[None])[0]
    # What stands in spare capacity is not looked at, but its node may have nothing inside: then all may be
    # drawn.
    outside = ~inside & (left.gather(1, node[:, None]) > 0)
    tempered = (own / temperature[:, None]).masked_fill(outside, -torch.inf)
    drawn = draw_tokens(tempered, uniform[1].flatten()[some], 1.0, 1.0, "standard")  # all is cut off already
    if not sees_tokens:
        nothing = torch.zeros_like(wanted, dtype=torch.float32)
        return Choice(path, put(drawn, place, wanted), nothing, nothing)
    probability = own.softmax(-1).gather(-1, drawn[:, None]).squeeze(-1)
    values = (drawn, probability, entropy_of(own))
    return Choice(path, *(put(x, place, wanted) for x in values))


def inside_together(
    logits: Tensor, prior: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Which tokens [n, V] lie in the nucleus of all candidates together, and the share [n, K] of each
    candidate's own that do, from logits [n, K, V] and priors [n, K]; settings are those of each row [n]."""
    if kernels.takes(logits) and top_k is None and logits.shape[-1] <= LONGEST:
        from dadlm.decode.kernels.short_row import inside_together as inside_fused

        return inside_fused(logits.contiguous(), prior.contiguous(), temperature.contiguous(), top_p)
    K = logits.shape[1]

    def emitted(k: int) -> Tensor:
        return (logits[:, k] / temperature[:, None]).softmax(-1)

    together = torch.zeros_like(logits[:, 0])
    for k in range(K):  # one at a time: of all together they would take as much memory as the logits again
        together += prior[:, k, None] * emitted(k)
    inside = in_nucleus(together, top_p, top_k)
    # In double precision: a long sum is rounded by the shape of the batch, and a path must not be.
    left = torch.stack([(emitted(k) * inside).sum(-1, dtype=torch.float64) for k in range(K)], -1).float()
    return inside, left


def draw_filtered(
    model: Model,
    prediction: Prediction,
    ids: Tensor,
    masked: Tensor,
    wanted: Tensor,
    uniform: tuple[Tensor, Tensor],
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor | None,
) -> Choice:
    """The same with token edges, from left to right: from the nucleus of q(x_i | tokens before it).

    A filter carries how likely each candidate is after the tokens drawn so far; the path is drawn last, given
    all tokens. `uniform` for the path and for the tokens, [B, N] each; temperature is fp32 [B], top_p fp64,
    top_k [B], or None where no row has one.
    """
    needed, before = on_the_way(masked, wanted), prediction.before
    assert before is not None
    B, N, K, _ = prediction.hidden.shape
    tokens, probability, entropy = ids.clone(), *torch.zeros(2, B, N, device=needed.device)
    emission = torch.zeros(B, N, K, device=needed.device)
    candidate = torch.arange(K, device=needed.device)
    reached = torch.full((B, K), -torch.inf, device=needed.device)
    reached[:, 0] = 0.0  # the start node
    for i in range(N):
        prior = (reached[:, :, None] + prediction.transition_logp[:, i]).logsumexp(1)
        left = left_at(tokens, masked, before, i, model.config.mask_id)
        left = left.map(lambda x: x[:, None].expand(B, K))
        logits = model.head.token_logits(prediction.hidden[:, i], candidate, left)  # [B, K, V]
        each = (logits / temperature[:, None, None]).log_softmax(-1)
        together = (prior[..., None] + each).logsumexp(1)
        inside = in_nucleus(together.exp(), top_p, top_k)
        drawn = draw_tokens(together.masked_fill(~inside, -torch.inf), uniform[1][:, i], 1.0, 1.0, "standard")
        need, at = needed[:, i], drawn[:, None, None]
        plain = (prior[..., None] + logits.log_softmax(-1)).logsumexp(1)
        said = plain.gather(1, drawn[:, None]).squeeze(1).exp()
        emission[:, i] = each.gather(2, at.expand(B, K, 1)).squeeze(2).masked_fill(~need[:, None], 0.0)
        for known, new in ((tokens, drawn), (probability, said), (entropy, entropy_of(plain))):
            known[:, i] = torch.where(need, new, known[:, i])
        reached = (prior + emission[:, i]).log_softmax(-1)
    path = dag.sample_path(dag.tilted(prediction.transition_logp, emission), uniform[0])
    return Choice(path, tokens, probability, entropy)

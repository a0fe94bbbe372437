"""Where the candidates of DA-DLM begin: apart, along directions in which tokens of a run err together.

A model that predicts masked tokens one by one misses what they have in common. With h a hidden state, W the
head and p its prediction, the gradient of log p(x) by h is the error r = W[x] - E_p[W]: a candidate that adds
o to h changes the log-likelihood of x by r·o. On a track, which is kept from one position to the next with
strength ρ, two tokens at a distance d then gain together ρ^d (r·o)(r'·o); alone each loses half of o'Fo, with
F the mean of Cov_p[W]. So the candidates begin in pairs ±o along the largest generalised eigenvectors of
(C, F), C the sum of ρ^d E[rr'] over the pairs of a run, from one pass over a few rows (docs/maths.md, §10).

B rows, G blocks, N block size, D width, V tokens.
"""

import math

import torch
from torch import Tensor

from dadlm.model import Context, Model, ModelConfig
from dadlm.noise import NoiseConfig, draw_noise
from dadlm.objective.factorised import cut
from dadlm.tokens import Rows, training_rows

_AT_ONCE = 4  # rows: their predictions over the whole vocabulary are held in memory
_SIZE = 0.5  # of an offset with candidate_offset 1: o'Fo = 1/4, so alone it would lose an eighth of a nat
_RIDGE = 10.0  # times the mean of F's diagonal: directions hardly ever used would win by chance


@torch.no_grad()
def set_apart(model: Model, rows: Rows, *, count: int, seed: int) -> None:
    """Give the candidates of a model that has just become a DA-DLM their first offsets, from `count` rows."""
    assert model.head.offset is not None
    model.head.offset.zero_()
    trains = model.training
    together, alone = _errors(model.eval(), rows, count, seed)
    model.train(trains)
    size = _SIZE * (model.config.candidate_offset or 0.0)
    model.head.offset.copy_(size * _directions(together, alone, len(model.head.offset)))


def _errors(model: Model, rows: Rows, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """C and F [D, D] in double precision, on the CPU."""
    weight = model.head.linear.weight[: model.config.mask_id].float()
    together = weight.new_zeros(2 * [weight.shape[1]], dtype=torch.float64)
    alone = together.clone()
    chosen, kept = training_rows(rows, 0, count, seed), _kept(model.config)
    for part in torch.arange(count).split(_AT_ONCE):
        hidden, ids, masked, value = _predict(model, rows.batch(chosen[part]), part, count, seed)
        p = model.head.token_logits(hidden[masked]).softmax(-1)  # [masked, V]
        mean = p @ weight
        error = torch.zeros_like(hidden)
        error[masked] = weight[ids[masked]] - mean
        share = value[masked][:, None]
        together += ((_earlier(error, masked, kept)[masked] * share).T @ error[masked]).double()
        alone += (weight.T @ ((p * share).sum(0)[:, None] * weight) - (mean * share).T @ mean).double()
    tokens = count * rows.context
    return ((together + together.T) / 2 / tokens).cpu(), (alone / tokens).cpu()


def _kept(config: ModelConfig) -> float:
    """ρ: how strongly the track bias alone keeps a candidate index."""
    strength = math.exp(config.track_bias or 0.0)
    return (strength - 1) / (strength + config.candidates - 1)


def _earlier(error: Tensor, masked: Tensor, kept: float) -> Tensor:
    """At each position [B, G, N, D], the sum of ρ^d times the errors before it in its run of masked ones."""
    sums = [torch.zeros_like(error[:, :, 0])]
    for i in range(1, error.shape[2]):
        sums.append(kept * masked[:, :, i, None] * (sums[-1] + error[:, :, i - 1]))
    return torch.stack(sums, 2)


def _predict(
    model: Model, ids: Tensor, part: Tensor, count: int, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states [B, G, N, D] of the blocks of rows ids [B, L]; their ids, masks and weights [B, G, N].

    Those of candidate 0: before they are set apart the candidates of a position say nearly the same.
    """
    N = model.config.block_size
    noise = draw_noise(
        NoiseConfig(), seed=seed, step=0, rows=part, batch_rows=count, length=ids.shape[1], block_size=N
    ).to(model.device)
    context, ids = Context(), ids.to(model.device)
    model.read(ids, context, only_context=True)
    blocks, masked, first = cut(ids, noise.masked, N)
    denoised = model.denoise(blocks, masked, first, context)
    nodes = denoised.nodes
    hidden = nodes.groups(nodes.to_slots(denoised.hidden))[:, :, :, 0].float()
    return hidden, blocks, masked, noise.weight[..., None].expand_as(masked)


def _directions(together: Tensor, alone: Tensor, candidates: int) -> Tensor:
    """[K, D]: pairs ±o along the best directions, o'Fo = 1; of an odd number one stays in the middle."""
    alone = alone + 1e-9 * torch.eye(len(alone), dtype=alone.dtype)  # a model may be certain of everything
    ridge = _RIDGE * alone.diagonal().mean() * torch.eye(len(alone), dtype=alone.dtype)
    inverse = torch.linalg.inv(torch.linalg.cholesky(alone + ridge))
    best = (inverse.T @ torch.linalg.eigh(inverse @ together @ inverse.T)[1]).flip(1)
    directions = torch.zeros(candidates, len(alone), dtype=alone.dtype)
    for pair in range(candidates // 2):
        o = best[:, pair]
        o = o / (o @ alone @ o).sqrt()
        directions[2 * pair], directions[2 * pair + 1] = o, -o
    return directions

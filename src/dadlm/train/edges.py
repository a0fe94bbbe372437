"""Token edges from counts: which tokens follow which in a text, as factors of rank R.

The smoothed pointwise mutual information of a pair, log((c(x, y) + α·p(y)) / ((c(x) + α)·p(y))), is up to a
constant of x, which no softmax sees, log(1 + c(x, y) / (α·p(y))): zero for pairs that never occurred, so that
a vocabulary of any size has room. Its truncated singular value decomposition is where the factors start; they
are then fitted to the likelihood of the pairs, which at the same rank is far better (docs/experiments.md).
Edges of second order have factors of their own, from pairs that stand two places apart.

V vocabulary without the mask, R rank, P different pairs, x a token, y one that follows it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from dadlm.errors import ConfigError, DataError
from dadlm.model import Model
from dadlm.model.checkpoint import set_weights, weights
from dadlm.model.edge import Bilinear
from dadlm.noise import Noise
from dadlm.objective import losses
from dadlm.tokens import Mixture, Rows

OPEN_SCALE = 0.9
"""Weight of fitted edges in a model that has not seen the neighbour: less than one, since the model says part
of the same."""
SECOND_SCALE = 0.6
"""The same for edges of second order: the token in between says part of it, too."""
_SMOOTHING = 100.0  # α, in tokens
_AT_ONCE = 1 << 22  # pairs counted, and logits held, at once
_LR = 0.01


@dataclass(frozen=True)
class Pairs:
    """How often each pair of tokens occurred, neighbours or two places apart, in the order of the pairs."""

    first: Tensor
    """[P]: x."""
    second: Tensor
    """[P]: y."""
    count: Tensor
    """[P]: fp32."""
    share: Tensor
    """[V]: of each token in the text, none of them zero."""

    @property
    def log_ratio(self) -> Tensor:
        """[P]: log(1 + c(x, y) / (α·p(y)))."""
        return (self.count / (_SMOOTHING * self.share[self.second])).log1p()


def count_pairs(rows: Rows, vocabulary: int, tokens: int, apart: int = 1) -> Pairs:
    """Count the pairs that stand `apart` places apart, in the first `tokens` tokens; of a mixture, in the
    rows that training sees first, so that every source has its share."""
    if tokens < 2:
        raise ConfigError(f"edges need at least 2 tokens to count, got {tokens}")
    chosen = torch.arange(min(len(rows), -(-tokens // rows.context)))
    chosen = rows.order(chosen, 0) if isinstance(rows, Mixture) else chosen
    at_once = max(1, _AT_ONCE // rows.context)
    codes, counts, single = np.empty(0, np.int64), np.empty(0, np.int64), np.full(vocabulary, 0.5)
    for some in chosen.split(at_once):
        ids = rows.batch(some).numpy()
        if ids.max() >= vocabulary:
            raise DataError(f"the text holds id {ids.max()}, but the model knows {vocabulary} tokens")
        single += np.bincount(ids.reshape(-1), minlength=vocabulary)
        new, often = np.unique(ids[:, :-apart] * vocabulary + ids[:, apart:], return_counts=True)
        codes, place = np.unique(np.concatenate([codes, new]), return_inverse=True)
        weight = np.concatenate([counts, often]).astype(np.float64)
        counts = np.bincount(place, weights=weight, minlength=len(codes)).astype(np.int64)
    pairs = torch.from_numpy(codes)
    return Pairs(
        pairs // vocabulary,
        pairs % vocabulary,
        torch.from_numpy(counts).float(),
        torch.from_numpy(single / single.sum()).float(),
    )


def decompose(pairs: Pairs, rank: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Factors [V, R] of the log ratios: the best of this rank if a pair weighs as much as its tokens do."""
    root, V = pairs.share.sqrt(), len(pairs.share)
    if rank > V:
        raise ConfigError(f"the rank of the edges is {rank}, but there are only {V} tokens")
    weighted = root[pairs.first] * pairs.log_ratio * root[pairs.second]
    place = torch.stack([pairs.first, pairs.second])
    table = torch.sparse_coo_tensor(place, weighted, (V, V), check_invariants=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        left, size, right = torch.svd_lowrank(table, q=min(V, rank + 16), niter=2)
    size = size[:rank].sqrt()
    return left[:, :rank] * size / root[:, None], right[:, :rank] * size / root[:, None]


def fit(
    pairs: Pairs,
    factors: tuple[Tensor, Tensor],
    steps: int = 200,
    seed: int = 0,
    quiet: bool = True,
) -> tuple[Tensor, Tensor]:
    """Fit left and right [V, R] to the pairs: Σ c(x, y)·log softmax_y(log p(y) + ⟨left(x), right(y)⟩).

    A step takes some of the tokens x that begin a pair, frequent ones more often but not as often as they
    occur.
    """
    left, right = (factor.clone().requires_grad_() for factor in factors)
    optimizer = torch.optim.Adam([left, right], lr=_LR, betas=(0.9, 0.95))
    share, V, generator = pairs.share, len(pairs.share), torch.Generator().manual_seed(seed)
    row_ends = torch.searchsorted(pairs.first, torch.arange(V + 1))
    total = torch.zeros(V).index_add_(0, pairs.first, pairs.count)
    # In a large vocabulary and a short text hardly any token has pairs: a step of others would learn nothing.
    begins = total.nonzero().squeeze(1)
    often = share[begins].sqrt()
    for step in track(range(steps), "fitting token edges", disable=quiet, transient=True):
        optimizer.param_groups[0]["lr"] = _LR * min(1.0, (step + 1) / 10) * (1 - step / steps)
        place = torch.multinomial(often, max(1, 2 * _AT_ONCE // V), True, generator=generator).unique()
        x, weight = begins[place], often[place]
        logits = left[x] @ right.t() + share.log()
        row, pair = _ranges(row_ends[x], row_ends[x + 1])
        said = (pairs.count[pair] / total[x][row]) * logits[row, pairs.second[pair]]
        nll = logits.logsumexp(1) - torch.zeros(len(x)).index_add(0, row, said)
        optimizer.zero_grad()
        (weight @ nll / weight.sum()).backward()
        optimizer.step()
    return left.detach(), right.detach()


def _ranges(first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """All numbers of the ranges first..last-1, and the index of the range that each is in."""
    length = last - first
    row = torch.repeat_interleave(torch.arange(len(first)), length)
    offset = torch.arange(len(row)) - (length.cumsum(0) - length)[row]
    return row, first[row] + offset


def pair_nll(pairs: Pairs, left: Tensor, right: Tensor) -> float:
    """Nats of a pair's second token given the first, by fitted factors."""
    total = 0.0
    for x in torch.arange(len(left)).split(max(1, _AT_ONCE // len(left))):
        logp = (left[x] @ right.t() + pairs.share.log()).log_softmax(-1)
        part = (pairs.first >= x[0]) & (pairs.first <= x[-1])
        said = logp[pairs.first[part] - x[0], pairs.second[part]]
        total -= float((said * pairs.count[part]).double().sum())
    return total / float(pairs.count.sum())


def is_fresh(model: Model) -> bool:
    """Whether a model has bilinear edges that say nothing yet."""
    return isinstance(model.head.edge, Bilinear) and not bool(model.head.edge.right.any())


@torch.no_grad()
def set_edges(model: Model, left: Tensor, right: Tensor, scale: float = OPEN_SCALE) -> None:
    """Put fitted factors into a model: with weight `scale` after an open neighbour, none after a known
    one."""
    edge, (V, R) = model.head.edge, left.shape
    assert isinstance(edge, Bilinear)
    edge.left.weight[:V], edge.right[:V, :R] = left.to(model.device), right.to(model.device)
    edge.left.weight[V:] = 0  # the mask
    edge.scale[0], edge.scale[1] = 0.0, scale
    edge.context.zero_()


@torch.no_grad()
def set_second(model: Model, left: Tensor, right: Tensor, scale: float = SECOND_SCALE) -> None:
    """Put fitted factors of second order into a model, with weight `scale`."""
    edge = model.head.edge
    assert isinstance(edge, Bilinear) and edge.second is not None
    edge.second.weight.copy_(scale * left)
    edge.right[: len(right), model.config.edge_rank :] = right.to(model.device)


def start_edges(model: Model, rows: Rows, tokens: int, seed: int = 0, quiet: bool = True) -> None:
    """Start a model's fresh edges from the pairs of this many tokens of a text."""
    config = model.config
    for rank, put, apart in ((config.edge_rank, set_edges, 1), (config.edge_second_rank, set_second, 2)):
        if rank:
            pairs = count_pairs(rows, config.mask_id, tokens, apart)
            put(model, *fit(pairs, decompose(pairs, rank, seed), seed=seed, quiet=quiet))


def with_edges(plain: Model, rank: int, second_rank: int = 0) -> Model:
    """The model with fresh edges of these ranks, which say nothing yet; edges that it has stay as they are,
    and those of second order are added."""
    config = replace(plain.config, edge="bilinear", edge_rank=rank, edge_second_rank=second_rank)
    model = Model(config, plain.tokenizer).eval()
    own = {name: tensor for name, tensor in weights(model).items() if name.startswith("head.edge.")}
    there = weights(plain)
    for name, dim in (("head.edge.right", 1), ("head.edge.context", 0)):
        if name in there:  # the new columns come after those that are there
            there[name] = torch.cat([there[name], own[name].narrow(dim, rank, second_rank)], dim)
    set_weights(model, own | there, "the model before")
    return model.to(plain.device)


def choose_scale(model: Model, rows: Rows, scales: Sequence[float]) -> dict[float, float]:
    """Give the edges the weight under which fully masked blocks of a text are likeliest; returns the nats per
    token for each weight."""
    edge = model.head.edge
    assert isinstance(edge, Bilinear)
    return _choose(model, rows, scales, lambda scale: edge.scale[1].fill_(scale))


def choose_second_scale(
    model: Model, rows: Rows, scales: Sequence[float], factors: tuple[Tensor, Tensor]
) -> dict[float, float]:
    """The same for edges of second order with these factors."""
    return _choose(model, rows, scales, lambda scale: set_second(model, *factors, scale))


@torch.no_grad()
def _choose(
    model: Model, rows: Rows, scales: Sequence[float], put: Callable[[float], object]
) -> dict[float, float]:
    N, found = model.config.block_size, dict[float, float]()
    length = min(rows.context, 32 * N)
    for scale in scales:
        put(scale)
        nats = tokens = 0.0
        for index in range(min(len(rows), 8)):
            ids = rows[index][None, :length].to(model.device)
            masked = torch.ones_like(ids, dtype=torch.bool)
            masked[:, : N if length > N else 1] = False  # a row's first block has nothing before it
            nats += float(losses(model, ids, Noise.of(masked), report=False).reconstruction.sum())
            tokens += int(masked.sum())
        found[scale] = nats / tokens
    put(min(found, key=lambda scale: found[scale]))
    return found

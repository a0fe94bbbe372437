"""Probabilities of tokens: at each position of a partly masked row, and of a continuation after a context.

A continuation's probability is exact for AR, else a lower bound: a block's tokens are revealed one by one in
a random order, and the mean of log p over the orders is at most the log of the mean. A draw takes one order
per block and scores every token once, given those revealed before it; positions after the continuation stay
masked. (Sets of masked tokens, as in perplexity.py, have the same mean, but count some tokens more often than
others, which matters in short texts.)

B rows, L tokens, G blocks, J masked copies of blocks, N block size, K candidates, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dadlm import counter, dag
from dadlm.errors import ConfigError
from dadlm.evaluate.scores import finite
from dadlm.model import Context, Model, Scores, eval_mode
from dadlm.noise import Noise
from dadlm.objective import exact_or
from dadlm.objective.marginals import blocks_of, token_marginals

_COPIES = 128  # masked copies of blocks scored at once
_CHAINS = 64  # for token edges with a large vocabulary: the mean of the bound is still a bound
_NEVER = 1 << 62  # rank of a token that is not revealed


def position_logp(model: Model, ids: Tensor, clean: Tensor | None = None) -> Tensor:
    """Log-probabilities [B, L, V] of ids [B, L] in which unknown tokens are the mask; the mask has -inf.

    Of the token at each position, or of the next one (ar); of a graph the marginals, and so of token edges,
    by sampled chains where the vocabulary is large (gradients then take what was drawn as given). Blocks see
    the blocks before them as `clean` has them, or as they stand.
    """
    N, mask, length = model.config.block_size, model.config.mask_id, ids.shape[1]
    if model.config.family in ("ar", "mdlm"):
        scores = model(ids, Noise.of(ids == mask), emissions=False)
        logp = model.head.token_logits(scores.hidden).log_softmax(-1)
    else:
        # The padding of the last block is masked.
        ids, clean = (F.pad(x, (0, -length % N), value=mask) for x in (ids, ids if clean is None else clean))
        scores = model(ids, Noise.of(ids == mask), clean=clean, emissions=False)
        hidden = scores.nodes.groups(scores.nodes.to_slots(scores.hidden))
        transition = scores.transition_logp
        prior = None if transition is None else dag.node_marginals(transition)
        logp = _marginal_logp(model, hidden, prior)
        if model.head.edge is not None:
            logp = _with_edges(model, scores, ids, clean, logp)
        logp = logp.flatten(1, 2)[:, :length]
    return F.pad(logp, (0, 1), value=-torch.inf)


def _marginal_logp(model: Model, hidden: Tensor, prior: Tensor | None) -> Tensor:
    """[..., V] of a position's nodes [..., K, D] with log prior [..., K]; None: there is a single node."""
    logp = torch.full((), -torch.inf, device=hidden.device)
    for k in range(hidden.shape[-2]):  # one at a time: K vocabularies at once would be K times the memory
        said = model.head.token_logits(hidden[..., k, :], k).log_softmax(-1)
        logp = torch.logaddexp(logp, said if prior is None else prior[..., k, None] + said)
    return logp


def _with_edges(model: Model, scores: Scores, ids: Tensor, clean: Tensor, logp: Tensor) -> Tensor:
    """[B, G, N, V]: at masked positions the marginals over open tokens to their left, elsewhere `logp`."""
    V, target = model.config.mask_id, ids.view(len(ids), -1, model.config.block_size)
    blocks = blocks_of(scores.denoised, scores.transition_logp, target, clean, V)
    found = logp.flatten(0, 1)
    for said in token_marginals(model, blocks, blocks.masked, chains=exact_or(_CHAINS, model)):
        found = found.index_put((said.blocks, torch.full_like(said.blocks, said.place)), said.mean)
    return found.view(logp.shape)


@dataclass(frozen=True)
class Score:
    """Of a continuation."""

    logp: float
    """Natural log of its probability, or a lower bound on it."""
    greedy: bool
    """Whether every token is the most probable one after those before it."""


def score_continuation(
    model: Model, context: Sequence[int], continuation: Sequence[int], *, draws: int = 1, seed: int = 0
) -> Score:
    """Score token ids after at least one token of context; draws and seed affect only the bound."""
    family, length = model.config.family, len(context) + len(continuation)
    if family == "mdlm":
        raise ConfigError("mdlm models are not scored here: use an ar, bd3lm or dadlm model")
    if draws < 1:
        raise ConfigError(f"draws must be at least 1, got {draws}")
    if not context or length > model.config.context:
        raise ConfigError(
            f"{len(context)} tokens of context and {len(continuation)} of continuation: expected at least "
            f"one of context, and {model.config.context} together at most"
        )
    if not continuation:
        return Score(0.0, True)
    ids = torch.tensor([*context, *continuation], device=model.device)
    with eval_mode(model), torch.no_grad():
        if family == "ar":
            return _exact(model, ids, len(context))
        return _bound(model, ids, len(context), draws, seed)


def _exact(model: Model, ids: Tensor, known: int) -> Score:
    logp = model.head.logits(model.read(ids[None])[0, known - 1 : -1]).log_softmax(-1)
    value = finite(logp.gather(1, ids[known:, None]).double().sum())
    return Score(float(value), bool((logp.argmax(-1) == ids[known:]).all()))


def _bound(model: Model, ids: Tensor, known: int, draws: int, seed: int) -> Score:
    N = model.config.block_size
    padded = F.pad(ids, (0, -len(ids) % N))
    clean = Context()
    model.read(padded[None], clean, only_context=True)
    position = torch.arange(len(padded), device=ids.device)

    def scored(rank: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability of the continuation, and the likeliest token in place of each of its tokens [J].

        A token is scored with itself and all tokens of later rank masked.
        """
        rank = rank.masked_fill(position < known, -1).masked_fill(position >= len(ids), _NEVER).view(-1, N)
        block, place = ((rank >= 0) & (rank < _NEVER)).nonzero(as_tuple=True)
        masked, logp, best = rank[block] >= rank[block, place][:, None], [], []
        for b, p, m in zip(*(tensor.split(_COPIES) for tensor in (block, place, masked)), strict=True):
            blocks = padded.view(-1, N)[b]
            said = _logp(model, clean, padded, blocks, m, b, p, seed)
            logp.append(said.gather(1, blocks.gather(1, p[:, None])).double())
            best.append(said.argmax(-1))
        return torch.cat(logp).sum(), torch.cat(best)

    total = torch.zeros((), dtype=torch.float64, device=ids.device)
    for draw in range(draws):  # by seed and position alone: the same for all continuations of a context
        lot = counter.hash_counters(seed, counter.ORDER, draw, position) & (_NEVER - 1)
        total += scored(lot)[0]
    best = scored(position)[1]  # from left to right
    return Score(float(finite(total / draws)), bool((best == ids[known:]).all()))


def _logp(
    model: Model,
    clean: Context,
    text: Tensor,
    ids: Tensor,
    masked: Tensor,
    block: Tensor,
    place: Tensor,
    seed: int,
) -> Tensor:
    """[J, V] at `place` [J] of masked copies `ids` [J, N] of blocks number `block` [J] of one text [L]."""
    first = block * model.config.block_size
    denoised = model.denoise(ids[None], masked[None], first[None], clean)
    nodes, copy = denoised.nodes, torch.arange(len(place), device=place.device)
    if model.head.edge is not None:
        V, wanted = model.config.mask_id, F.one_hot(place, ids.shape[1]).bool()
        blocks = blocks_of(denoised, model.transition_logp(denoised), ids[None], text[None], V)
        logp = torch.zeros(len(place), V, device=place.device)
        for said in token_marginals(model, blocks, wanted, chains=exact_or(_CHAINS, model), seed=seed):
            logp[said.blocks] = said.mean
        return logp
    hidden = nodes.groups(nodes.to_slots(denoised.hidden))[0, copy, place]  # [J, K, D]
    prior = dag.node_marginals(model.transition_logp(denoised))[0, copy, place]  # [J, K]
    return _marginal_logp(model, hidden, prior)

"""How probable a continuation is after a context: exact for AR, else a lower bound.

A block's tokens are revealed one by one in a random order, and the mean of log p over the orders is at most
the log of the mean. A draw takes one order for each block and scores every token once, given those
revealed before it. (Drawing sets of masked tokens, as `evaluate/perplexity.py` does, has the same mean, but
counts some tokens more often than others, which evens out over long texts only.) What stands in the block
before the continuation is known; what would come after it stays masked throughout.

J masked copies of blocks, G blocks, N block size, K candidates, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dadlm import counter, dag
from dadlm.errors import ConfigError
from dadlm.evaluate.scores import finite
from dadlm.model import Context, Model, eval_mode

_COPIES = 128  # masked copies of blocks scored at once
_NEVER = 1 << 62  # rank of a token that is not revealed


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
    """Score token ids after at least one other; draws and seed matter to the bound only."""
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
    padded = torch.nn.functional.pad(ids, (0, -len(ids) % N))
    clean = Context()
    model.read(padded[None], clean, only_context=True)
    position = torch.arange(len(padded), device=ids.device)

    def copies(rank: Tensor) -> Iterator[tuple[_Copies, Tensor]]:
        """For each token of the continuation its block, with it and all of later rank masked; its place."""
        rank = rank.masked_fill(position < known, -1).masked_fill(position >= len(ids), _NEVER).view(-1, N)
        block, place = ((rank >= 0) & (rank < _NEVER)).nonzero(as_tuple=True)
        masked = rank[block] >= rank[block, place][:, None]
        for b, p, m in zip(*(tensor.split(_COPIES) for tensor in (block, place, masked)), strict=True):
            yield _Copies(model, clean, padded.view(-1, N)[b], m, b), p

    logp = []
    for draw in range(draws):  # by seed and position alone: the same for all continuations of a context
        lot = counter.hash_counters(seed, counter.ORDER, draw, position) & (_NEVER - 1)
        logp += [block.logp(place) for block, place in copies(lot)]
    value = finite(torch.cat(logp).double().sum() / draws)
    best = torch.cat([block.best(place) for block, place in copies(position)])  # from left to right
    return Score(float(value), bool((best == ids[known:]).all()))


class _Copies:
    """Blocks ids [J, N] of one text, number `block` [J] of it, masked where `masked` [J, N] and denoised."""

    def __init__(self, model: Model, clean: Context, ids: Tensor, masked: Tensor, block: Tensor):
        first = block * model.config.block_size
        self.model, self.ids = model, ids[None]
        self.denoised = model.denoise(self.ids, masked[None], first[None], clean)
        self.prior = dag.node_marginals(model.transition_logp(self.denoised))  # [1, J, N, K]

    def logp(self, place: Tensor) -> Tensor:
        """[J]: log-probability of the token at the place [J] of each copy, by its own marginal."""
        logp = (self.prior + self.model.emission_logp(self.denoised, self.ids)).logsumexp(-1)[0]
        return logp.gather(1, place[:, None])[:, 0]

    def best(self, place: Tensor) -> Tensor:
        """[J]: the most probable token at the place [J] of each copy."""
        nodes, copy = self.denoised.nodes, torch.arange(len(place), device=place.device)
        hidden = nodes.groups(nodes.to_slots(self.denoised.hidden))[0, copy, place]  # [J, K, D]
        candidate = torch.arange(hidden.shape[1], device=place.device)
        logp = self.model.head.logits(hidden, candidate).log_softmax(-1)  # [J, K, V]
        return (self.prior[0, copy, place][..., None] + logp).logsumexp(1).argmax(-1)

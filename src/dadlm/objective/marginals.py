"""What a pass says of one token alone, where token edges tie it to its neighbours: the open ones to its left
are summed out. Known tokens end a run, so every run of masked positions starts from a known one.

Exactly, by messages over (node, token), or by sampled chains, each of which draws a run from left to right
and carries a filter over the nodes: the mean of what they say of a token is its marginal in expectation.
docs/maths.md derives both.

J blocks, N block size, K candidates, V vocabulary without the mask, D width, S chains, n blocks of a piece.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from dadlm import counter
from dadlm.errors import ConfigError
from dadlm.model import Denoised, Model
from dadlm.model.edge import Left, on_the_way

_CHUNK = 1 << 24  # logits held at once (elements)
_DEARER = 16
"""Messages run the head once for each token of the vocabulary, chains once each: messages are used where they
cost at most this many times as much."""


class Said(NamedTuple):
    """What a pass says of one place in some blocks."""

    place: int
    blocks: Tensor
    """[n]: which of the J."""
    logp: Tensor
    """[n, C, V]: log-probabilities; C is 1 where they are exact, else one for each chain, to be averaged."""

    @property
    def mean(self) -> Tensor:
        """[n, V]: log of the mean over the chains."""
        return self.logp.logsumexp(1) - math.log(self.logp.shape[1])


class Blocks(NamedTuple):
    """J blocks after one pass."""

    hidden: Tensor
    """[J, N, K, D]."""
    transition_logp: Tensor
    """[J, N, K, K]."""
    ids: Tensor
    """[J, N]: only the known ones are looked at."""
    masked: Tensor
    """[J, N]."""
    before: Tensor
    """[J]: the token before each block."""
    key: Tensor
    """[J]: what the random numbers of a block depend on."""

    def take(self, which: Tensor) -> "Blocks":
        return Blocks(*(x[which] for x in self))


def exact_or(chains: int, model: Model) -> int:
    """How many chains to draw: none (0: messages) where messages do not cost much more. Edges of second order
    have no messages: those would be over pairs of tokens."""
    edge = model.head.edge
    if edge is None or edge.second is None:
        return 0 if model.config.mask_id <= _DEARER * chains else chains
    if not chains:
        raise ConfigError(
            "chains is 0 (exact), but with edges of second order there are no exact marginals: take a "
            "multiple of 4, such as 64"
        )
    return chains


def check_chains(chains: int) -> None:
    if chains < 0 or chains % 4:
        raise ConfigError(
            f"chains must be a multiple of 4, which shows what fewer would give, or 0 (exact), got {chains}"
        )


def blocks_of(
    denoised: Denoised, transition_logp: Tensor | None, ids: Tensor, clean: Tensor, mask_id: int
) -> Blocks:
    """From blocks ids [B, G, N] of rows, after clean text [B, L] of the same rows."""
    nodes = denoised.nodes
    hidden = nodes.groups(nodes.to_slots(denoised.hidden))
    if transition_logp is None:
        transition_logp = hidden.new_zeros(*hidden.shape[:3], 1, 1, dtype=torch.float32)
    noisy = ids.masked_fill(nodes.masked, mask_id)
    per_block = (hidden, transition_logp, ids, nodes.masked, denoised.before)
    key = _keys(clean, noisy, nodes.first)
    return Blocks(*(x.flatten(0, 1) for x in (*per_block, key)))


def _keys(clean: Tensor, noisy: Tensor, first: Tensor) -> Tensor:
    """[B, G]: a hash of what a block is predicted from, so that a row has the same random numbers in every
    batch, whatever comes after it, and none depends on a masked token."""
    place = torch.arange(clean.shape[1], device=clean.device)
    text = torch.nn.functional.pad(counter.hash_counters(clean, place).cumsum(1), (1, 0))
    inside = counter.hash_counters(
        noisy, first[..., None] + torch.arange(noisy.shape[2], device=first.device)
    )
    return text.gather(1, first) + inside.sum(-1)


def token_marginals(
    model: Model, blocks: Blocks, wanted: Tensor, *, chains: int = 0, seed: int = 0
) -> Iterator[Said]:
    """What a pass says of each masked token that is wanted [J, N], place by place, in pieces that fit memory;
    by `chains` chains, or exactly (0)."""
    J, N, K, _ = blocks.hidden.shape
    needed = on_the_way(blocks.masked, wanted)
    most = max(1, _CHUNK // (K * model.config.mask_id * max(chains, 1)))
    for piece in torch.arange(J, device=wanted.device).split(most):
        part, need = blocks.take(piece), needed[piece]
        run: _Messages | _Chains
        run = _Chains(model, part, chains, seed) if chains else _Messages(model, part)
        for i in range(N):
            after_known = torch.ones_like(need[:, 0]) if i == 0 else ~part.masked[:, i - 1]
            for starts in (True, False):
                which = (need[:, i] & (after_known == starts)).nonzero().squeeze(1)
                if not len(which):
                    continue
                logp = run.start(i, which) if starts else run.step(i, which)
                asked = wanted[piece[which], i].nonzero().squeeze(1)
                if len(asked):
                    yield Said(i, piece[which[asked]], logp[asked])


def _after_known(model: Model, blocks: Blocks, i: int, which: Tensor) -> Tensor:
    """[n, K, V]: log P(node, token) at place i of some blocks, where the token to the left is known: it has
    one node, the first."""
    token = blocks.before[which] if i == 0 else blocks.ids[which, i - 1]
    n, K = len(which), blocks.hidden.shape[2]
    left = Left(token[:, None].expand(n, K), torch.zeros(n, K, dtype=torch.bool, device=token.device))
    candidate = torch.arange(K, device=token.device).expand(n, K)
    logits = model.head.token_logits(blocks.hidden[which, i], candidate, left)
    return blocks.transition_logp[which, i, 0][..., None] + logits.log_softmax(-1)


class _Messages:
    """m_i(k', x') = Σ_{k,x} m_{i-1}(k, x) T(k → k') p(x' | k', x), in logarithms."""

    def __init__(self, model: Model, blocks: Blocks) -> None:
        self.model, self.blocks = model, blocks
        J, _, K, _ = blocks.hidden.shape
        dtype = torch.promote_types(blocks.hidden.dtype, torch.float32)
        self.there = torch.zeros(J, K, model.config.mask_id, dtype=dtype, device=blocks.hidden.device)

    def start(self, i: int, which: Tensor) -> Tensor:
        return self._keep(which, _after_known(self.model, self.blocks, i, which))

    def step(self, i: int, which: Tensor) -> Tensor:
        link = self.blocks.transition_logp[which, i]
        arrive = (self.there[which][:, :, None] + link[..., None]).logsumexp(1)  # [n, K, V]: node, left token
        return self._keep(which, self._sum_left(i, which, arrive))

    def _sum_left(self, i: int, which: Tensor, arrive: Tensor) -> Tensor:
        """[n, K, V] of (node, token), from (node, left token): V softmaxes over V for each node."""
        n, K, V = arrive.shape
        hidden, arrive = self.blocks.hidden[which, i].flatten(0, 1), arrive.flatten(0, 1)
        candidate, token = (torch.arange(size, device=which.device) for size in (K, V))
        candidate, found = candidate.repeat(n), []
        for some in torch.arange(n * K, device=which.device).split(max(1, _CHUNK // V**2)):
            total = None
            for x in token.split(max(1, _CHUNK // V)):
                shape = len(some), len(x)
                left = Left(x.expand(shape), torch.ones(shape, dtype=torch.bool, device=x.device))
                states = hidden[some, None].expand(*shape, -1)
                logits = self.model.head.token_logits(states, candidate[some, None].expand(shape), left)
                part = (arrive[some][:, x, None] + logits.log_softmax(-1)).logsumexp(1)
                total = part if total is None else torch.logaddexp(total, part)
            found.append(total)
        return torch.cat(found).view(n, K, V)

    def _keep(self, which: Tensor, joint: Tensor) -> Tensor:
        self.there = self.there.index_copy(0, which, joint)
        return joint.logsumexp(1)[:, None]


class _Chains:
    """S draws of each run from left to right, each with the posterior of the nodes given its tokens."""

    def __init__(self, model: Model, blocks: Blocks, chains: int, seed: int) -> None:
        self.model, self.blocks, self.seed = model, blocks, seed
        J, _, K, _ = blocks.hidden.shape
        device = blocks.hidden.device
        self.number = torch.arange(chains, device=device)
        self.token = torch.zeros(J, chains, dtype=torch.int64, device=device)
        self.second = torch.full_like(self.token, model.config.mask_id)
        """The token before it where that was open too, else the mask."""
        self.node = torch.zeros(J, chains, K, device=device)

    def start(self, i: int, which: Tensor) -> Tensor:
        joint = _after_known(self.model, self.blocks, i, which)[:, None]
        self.second[which] = self.model.config.mask_id
        return self._draw(i, which, joint)

    def step(self, i: int, which: Tensor) -> Tensor:
        n, S, K = len(which), len(self.number), self.blocks.hidden.shape[2]
        link = self.blocks.transition_logp[which, i]
        prior = (self.node[which][..., None] + link[:, None]).logsumexp(2)  # [n, S, K]
        token, second = (x[which][..., None].expand(n, S, K) for x in (self.token, self.second))
        left = Left(token, torch.ones_like(token, dtype=torch.bool), second)
        self.second[which] = self.token[which]
        states = self.blocks.hidden[which, i][:, None].expand(n, S, K, -1)
        candidate = torch.arange(K, device=which.device).expand(n, S, K)
        logits = self.model.head.token_logits(states, candidate, left)
        return self._draw(i, which, prior[..., None] + logits.log_softmax(-1))

    def _uniform(self, i: int, which: Tensor) -> Tensor:
        """[n, S]: one number in each of S equal parts of [0, 1), dealt out at random, so that the chains of a
        block are spread evenly; each alone is uniform, and independent of those at other places."""
        purpose = self.seed, counter.CHAIN, self.blocks.key[which, None], i
        lot = counter.hash_counters(*purpose, self.number).argsort(-1)
        return (lot + counter.uniform(*purpose, self.number, 1).double()) / len(self.number)

    def _draw(self, i: int, which: Tensor, joint: Tensor) -> Tensor:
        """Draw a token for each chain from joint [n, S or 1, K, V] of (node, token)."""
        n, S, (K, V) = len(which), len(self.number), joint.shape[2:]
        said = joint.logsumexp(2)
        with torch.no_grad():
            mass = said.exp().double().cumsum(-1).expand(n, S, V).contiguous()
            u = self._uniform(i, which)
            at = (u.double() * mass[..., -1])[..., None]
            token = torch.searchsorted(mass, at, right=True).squeeze(-1).clamp(max=V - 1)
            drawn = joint.expand(n, S, K, V).gather(3, token[..., None, None].expand(n, S, K, 1)).squeeze(3)
            self.token[which], self.node[which] = token, drawn.log_softmax(-1).to(self.node.dtype)
        return said

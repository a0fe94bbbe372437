"""What becomes of a draft: the target decides, and every text is one that it might have written by itself.

Trees that are a function of the text need no probabilities: at each node the target draws the next token as
it would alone; while that is a child of the node, the tokens after it are verified already. So the text is
the one that the target writes alone with the same random numbers. A drawn token is accepted with
probability min(1, p/q), which is more often; one that is refused leaves what remains of p and q to its next
sibling, and at last to the target: the text is distributed as the target's.

B rows, C nodes of a tree, V vocabulary without the mask.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from dadlm import counter
from dadlm.decode.batched_settings import BatchedSettings
from dadlm.decode.draft import Draft
from dadlm.decode.sample import draw, draw_each, in_top_k, most_probable, weights
from dadlm.decode.samplers.base import block_uniform
from dadlm.model import Model


class Verified(NamedTuple):
    tokens: Tensor
    """[B, n]: what the target has decided."""
    count: Tensor
    """[B]: how many of them, at least one."""
    path: Tensor
    """[B, n]: the node that each token follows: node 0 and those that were accepted."""


def way_of(draft: Draft, verified: Verified, row: int) -> tuple[list[int], list[bool]]:
    """The drafted tokens of a row on the way that was taken, then on the first way from there; and which
    of them were accepted."""
    tokens, parent, exists = (x[row].tolist() for x in (draft.tokens, draft.parent, draft.exists))
    way = verified.path[row, : int(verified.count[row])].tolist()
    taken = len(way) - 1
    while children := [at for at in range(1, len(tokens)) if exists[at] and parent[at] == way[-1]]:
        way.append(children[0])  # siblings: the likeliest comes first, or the one drawn first
    return [tokens[at] for at in way[1:]], [at < taken for at in range(len(way) - 1)]


def decide(
    target: Model,
    hidden: Tensor,
    draft: Draft,
    first: Tensor,
    seed: Tensor,
    settings: BatchedSettings,
    top_k: int,
) -> Verified:
    """What the target says of drafts, of whose nodes it has the final states hidden [B, C, D]; the tokens
    after node 0 stand at positions first [B]. `top_k`: the largest of these rows (0: none has one)."""
    rows, greedy = torch.arange(len(first), device=first.device), settings.cold | settings.best
    draws, some_greedy = not bool(greedy.all()), bool(greedy.any())

    def logits(node: Tensor) -> Tensor:
        return target.head.token_logits(hidden[rows, node])

    def draw_after(node: Tensor, depth: int) -> Tensor:
        """The token that the target alone draws there: the same random number gives the same one."""
        said = logits(node)
        if not draws:
            return most_probable(said)
        uniform = block_uniform(seed, first + depth, torch.zeros_like(first), 1, counter.TOKEN)[:, 0]
        drawn = draw_each(said, uniform, settings, rows, False, top_k)
        return torch.where(greedy, most_probable(said), drawn) if some_greedy else drawn

    def weight_after(node: Tensor, depth: int) -> Tensor:
        said = logits(node)
        best = torch.zeros_like(said).scatter(1, most_probable(said)[:, None], 1.0)
        if top_k:
            said = said.masked_fill(~in_top_k(said, settings.top_k[rows], top_k), -torch.inf)
        return torch.where(greedy[:, None], best, weights(said, settings, rows))

    if draft.drawn_from is None:
        return follow(draft, draw_after)
    numbers = [
        cycle_uniform(seed, first, draft.tokens.shape[1], use) for use in (counter.ACCEPT, counter.TOKEN)
    ]
    return accept(draft, weight_after, torch.stack(numbers))


def cycle_uniform(seed: Tensor, first: Tensor, count: int, purpose: int) -> Tensor:
    """[B, count]: random numbers of the cycle at positions first [B], which no other cycle has."""
    return block_uniform(seed, first, torch.zeros_like(first), count, purpose)


def follow(draft: Draft, draw_after: Callable[[Tensor, int], Tensor]) -> Verified:
    """Let the target draw, from node 0 down as long as its tokens were drafted. `draw_after(node [B], depth)`
    draws a token [B] after a node."""
    node, alive = torch.zeros_like(draft.tokens[:, 0]), draft.exists[:, 0]
    tokens, path, lives = [], [], []
    for depth in range(int(draft.depth.max()) + 1):
        token = draw_after(node, depth)
        tokens.append(token)
        path.append(node)
        lives.append(alive)
        child = draft.exists & (draft.parent == node[:, None]) & (draft.tokens == token[:, None])
        child[:, 0] = False
        alive = alive & child.any(1)
        node = torch.where(alive, child.int().argmax(1), node)
        if not token.is_cuda and not bool(alive.any()):
            break
    return Verified(torch.stack(tokens, 1), torch.stack(lives, 1).sum(1), torch.stack(path, 1))


def accept(draft: Draft, weight_after: Callable[[Tensor, int], Tensor], uniform: Tensor) -> Verified:
    """Recursive rejection: try the drawn children of a node in their order and go to the first that is
    accepted; where none is, the cycle ends with a token from what they left of p.

    `weight_after(node [B], depth)` is the target's distribution p [B, V] after a node, not normalised.
    `uniform` [2, B, C]: for accepting each node, and for drawing the last token, by its depth.
    """
    assert draft.drawn_from is not None and draft.source is not None, "what was not drawn is followed"
    child, there = draft.children()
    node, alive = torch.zeros_like(draft.tokens[:, 0]), draft.exists[:, 0]
    rows = torch.arange(len(node), device=node.device)
    tokens, path, lives = [], [], []
    for depth in range(int(draft.depth.max()) + 1):
        p, q = weight_after(node, depth).double(), draft.drawn_from[rows, draft.source[rows, node]].double()
        tries = child[rows, node], there[rows, node]
        chosen, left = _try_each(p, q, draft.tokens, *tries, uniform[0])
        accepted = chosen > 0
        other = draw(left, uniform[1, :, depth])
        tokens.append(torch.where(accepted, draft.tokens[rows, chosen], other))
        path.append(node)
        lives.append(alive)
        node, alive = torch.where(accepted, chosen, node), alive & accepted
        if not node.is_cuda and not bool(alive.any()):
            break
    return Verified(torch.stack(tokens, 1), torch.stack(lives, 1).sum(1), torch.stack(path, 1))


def _try_each(
    p: Tensor, q: Tensor, tokens: Tensor, child: Tensor, there: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """Which child [B, W] is accepted, if it is there, 0 if none is, and what is then left of p [B, V]."""
    p, chosen = p / p.sum(-1, keepdim=True), torch.zeros_like(child[:, 0])
    for at, exists in zip(child.unbind(1), there.unbind(1), strict=True):
        tried = exists & (chosen == 0)
        if not tried.is_cuda and not bool(tried.any()):
            break
        token = tokens.gather(1, at[:, None])
        ratio = uniform.gather(1, at[:, None]).double() * q.gather(1, token) < p.gather(1, token)
        accepted = tried & ratio[:, 0]
        chosen = torch.where(accepted, at, chosen)
        rest, others = (p - q).clamp(min=0.0), q.scatter(1, token, 0.0)
        refused = (tried & ~accepted)[:, None] & (rest.sum(-1, keepdim=True) > 0)  # none left: by rounding
        p = torch.where(refused, rest / rest.sum(-1, keepdim=True), p)
        q = torch.where(refused, others / others.sum(-1, keepdim=True), q)
    return chosen, p

"""What becomes of a draft: the target decides, and every text is one that it might have written by itself.

Trees that are a function of the text need no probabilities: at each node the target draws the next token as
it would alone; while that is a child of the node, the tokens after it are verified already. So the text is
the one that the target writes alone with the same random numbers. A drawn chain is accepted token by token
with probability min(1, p/q), more often, and the first that is refused is drawn from what q left of p: the
text is distributed as the target's.

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
    """The drafted tokens of a row on the way that was taken, then on the likeliest way from there; and which
    of them were accepted."""
    tokens, parent, exists = (x[row].tolist() for x in (draft.tokens, draft.parent, draft.exists))
    way = verified.path[row, : int(verified.count[row])].tolist()
    taken = len(way) - 1
    while children := [at for at in range(1, len(tokens)) if exists[at] and parent[at] == way[-1]]:
        way.append(children[0])  # siblings stand in the order of their probabilities
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
    at = seed[:, None], first[:, None] + torch.arange(draft.tokens.shape[1], device=first.device), 0, 0
    uniform = [counter.uniform(*at, purpose) for purpose in (counter.ACCEPT, counter.TOKEN)]
    return accept(draft, weight_after, torch.stack(uniform))


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
    """Accept the tokens of a drawn chain with probability min(1, p/q).

    `weight_after(node [B], depth)` is the target's distribution p [B, V] after a node, not normalised.
    `uniform` [2, B, C]: for accepting, and for drawing what stands in place of a refused token, or after the
    last.
    """
    q, alive = draft.drawn_from, draft.exists[:, 0]
    assert q is not None, "a tree that is a function of the text is followed, not accepted"
    tokens, path, lives = [], [], []
    for depth in range(draft.tokens.shape[1]):
        node = torch.full_like(draft.tokens[:, 0], depth)
        p = weight_after(node, depth).double()
        p = p / p.sum(-1, keepdim=True)
        accepted = torch.zeros_like(alive)
        left = p
        if depth < q.shape[1]:
            token, drafted = draft.tokens[:, depth + 1], draft.exists[:, depth + 1]
            own = q[:, depth].double()
            at = token[:, None]
            accepted = uniform[0, :, depth].double() * own.gather(1, at)[:, 0] < p.gather(1, at)[:, 0]
            accepted &= drafted
            rest = (p - own).clamp(min=0.0)
            refused = drafted & ~accepted & (rest.sum(-1) > 0)  # none is left only by rounding
            left = torch.where(refused[:, None], rest, p)
        other = draw(left, uniform[1, :, depth])
        tokens.append(torch.where(accepted, draft.tokens[:, min(depth + 1, q.shape[1])], other))
        path.append(node)
        lives.append(alive)
        alive = alive & accepted
        if not node.is_cuda and not bool(alive.any()):
            break
    return Verified(torch.stack(tokens, 1), torch.stack(lives, 1).sum(1), torch.stack(path, 1))

"""Drafts whose tokens are drawn from the draft model's own distribution: trees, and chains as the thinnest.

The children of a node are drawn without replacement, and the shape of a tree is fixed before anything is
drawn, so `verify.accept` may refuse them one after the other and still leave the target's distribution.

B rows, C nodes of a tree, M nodes of a level, W children of a node, K candidates, V vocabulary without the
mask.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from dadlm.decode.batched_settings import BatchedSettings
from dadlm.decode.draft import AT_ONCE, Draft, Filter
from dadlm.decode.sample import cut, draw, most_probable


def chain_shape(nodes: int, longest: int) -> tuple[int, ...]:
    """The parents of nodes that follow one another; node 0 is its own."""
    return (0, *range(min(nodes, longest)))


@lru_cache(maxsize=1024)
def tree_shape(nodes: int, longest: int) -> tuple[int, ...]:
    """The parents of the nodes that a walk most likely reaches, in this order, at most `longest` levels.

    As if of all who stand at a node one in r (r + 1) went to its r-th child: half of them to the first, a
    third of the others to the second, a quarter of the rest to the third.
    """
    parents, open_ = [0], [(-0.5, 0, 1, 1)] if longest else []
    while open_ and len(parents) <= nodes:
        chance, parent, rank, level = heapq.heappop(open_)
        heapq.heappush(open_, (chance * rank / (rank + 2), parent, rank + 1, level))
        if level < longest:
            heapq.heappush(open_, (chance / 2, len(parents), 1, level + 1))
        parents.append(parent)
    return tuple(parents)


def draw_tree(
    ahead: Filter,
    last: Tensor,
    shapes: Sequence[tuple[int, ...]],
    uniform: Tensor,
    settings: BatchedSettings,
    greedy: Tensor,
) -> Draft:
    """Trees of these shapes after `last` [B]: each token is drawn given those above it, from the nucleus of
    its row without the tokens of earlier siblings, or is the likeliest of these where `greedy` [B]; with
    uniform numbers [B, C]. Where the nucleus has no token left, a node does not exist."""
    plan = _plan(last, shapes)
    child, planned = plan.children()
    rows, C = torch.arange(len(last), device=last.device)[:, None], plan.tokens.shape[1]
    tokens = last[:, None].repeat(1, C + 1)  # place C is for what does not exist
    exists = torch.arange(C + 1, device=last.device).expand_as(tokens) == 0
    reached = ahead.start[:, None].repeat(1, C + 1, 1)
    source, drawn_from = torch.zeros_like(tokens), list[Tensor]()
    at_once = AT_ONCE // (ahead.start.numel() * ahead.head.mask_id)
    for level, node, inner in _inner(plan, planned[..., 0], at_once):
        before = tokens[rows, node], tokens[rows, plan.parent[rows, node]]
        logp, joint = ahead(level, reached[rows, node], *before)
        weight = _nucleus(logp, settings)
        number = sum(x.shape[1] for x in drawn_from) + torch.arange(node.shape[1], device=node.device)
        source[rows, torch.where(inner, node, C)] = number.expand_as(node)
        drawn_from.append(weight / weight.sum(-1, keepdim=True))
        below = child[rows, node]
        new, left = _draw_children(weight, uniform[rows[..., None], below], greedy)
        left &= planned[rows, node] & (inner & exists[rows, node])[..., None]
        place = rows[..., None], torch.where(left, below, C)
        tokens[place], exists[place] = new, left
        after = joint.gather(3, new[:, :, None].expand(-1, -1, joint.shape[2], -1))
        reached[place] = after.log_softmax(2).transpose(2, 3)
    tokens, exists, source = (x[:, :C] for x in (tokens, exists, source))
    return replace(plan, tokens=tokens, exists=exists, drawn_from=torch.cat(drawn_from, 1), source=source)


def _plan(last: Tensor, shapes: Sequence[tuple[int, ...]]) -> Draft:
    """Trees of these shapes, without tokens."""
    size = max(map(len, shapes))
    parent = torch.tensor([shape + (0,) * (size - len(shape)) for shape in shapes], device=last.device)
    place = torch.arange(size, device=last.device).expand_as(parent)
    exists = place < torch.tensor([[len(shape)] for shape in shapes], device=last.device)
    depth, above = (place > 0).long(), parent
    while bool((above > 0).any()):
        depth, above = depth + (above > 0), parent.gather(1, above)
    return Draft(last[:, None].expand_as(parent), parent, depth, exists)


def _inner(plan: Draft, has_child: Tensor, at_once: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Level by level the nodes [B, M] that have children, at most so many together; where a row has fewer,
    others fill up, and the last tensor [B, M] is False."""
    for level in range(int(plan.depth.max())):
        wanted, node = (has_child & (plan.depth == level)).sort(dim=1, descending=True, stable=True)
        most = int(wanted.sum(1).max())
        for part in torch.arange(most, device=node.device).split(max(1, at_once)):
            yield level, node[:, part], wanted[:, part]


def _nucleus(logp: Tensor, settings: BatchedSettings) -> Tensor:
    """Weights [B, M, V] of what a row may draw, by log-probabilities [B, M, V]."""
    row = torch.arange(len(logp), device=logp.device).repeat_interleave(logp.shape[1])
    weight = (logp - logp.amax(-1, keepdim=True)).exp().flatten(0, 1)
    return cut(weight, settings, row).view(logp.shape)


def _draw_children(weight: Tensor, uniform: Tensor, greedy: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens [B, M, W] without replacement by weight [B, M, V], and whether there was one left."""
    tokens, left = list[Tensor](), list[Tensor]()
    for number in uniform.unbind(-1):
        left.append((weight > 0).any(-1))
        tokens.append(torch.where(greedy[:, None], most_probable(weight), draw(weight, number)))
        weight = weight.scatter(-1, tokens[-1][..., None], 0.0)
    return torch.stack(tokens, -1), torch.stack(left, -1)

"""Drafts of the lossless mode: tokens that are likely to follow a text, as a tree, from one denoising pass.

The candidates of a position are summed out by a filter, so every token has its exact probability after the
tokens drafted before it. Whatever is drafted, the text is the target's (`verify`); a better draft is sooner
there.

B rows, N block size, L positions ahead, K candidates, M nodes of a tree expanded together, C nodes of a tree,
V vocabulary without the mask, D width.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dadlm.decode.predict import Prediction
from dadlm.model import Model
from dadlm.model.edge import Left

AT_ONCE = 1 << 26  # log-probabilities of a draft that are held at once


@dataclass(frozen=True)
class Draft:
    """A tree of tokens for each row; parents come before their children."""

    tokens: Tensor
    """[B, C]: node 0 is the last token of the text."""
    parent: Tensor
    """[B, C]: index of a node's parent; 0 for node 0."""
    depth: Tensor
    """[B, C]: 0 for node 0."""
    exists: Tensor
    """[B, C]: False in the padding of smaller trees."""
    drawn_from: Tensor | None = None
    """[B, n, V]: the distributions that children were drawn from, without replacement and in their order;
    None: the tree is a function of the text."""
    source: Tensor | None = None
    """[B, C]: which of these the children of each node were drawn from."""
    passes: Sequence[int] | None = None
    """Denoising passes that the draft of each row took; None: none."""

    @classmethod
    def chain(cls, tokens: Tensor, exists: Tensor) -> "Draft":
        """Each token of tokens [B, C] follows the one before it."""
        depth = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        return cls(tokens, (depth - 1).clamp(min=0), depth, exists)

    def children(self) -> tuple[Tensor, Tensor]:
        """[B, C, W]: the children of each node in their order, and which of these there are."""
        C = self.tokens.shape[1]
        real = self.exists & (torch.arange(C, device=self.tokens.device) > 0)
        above = (F.one_hot(self.parent, C).bool() & real[..., None]).transpose(1, 2)
        there, child = above.sort(dim=2, descending=True, stable=True)
        most = max(1, int(there.sum(2).max()))
        return child[..., :most], there[..., :most]

    def sees(self) -> Tensor:
        """[B, C, C]: the ancestors of each node, and itself."""
        C = self.tokens.shape[1]
        seen = torch.eye(C, dtype=torch.bool, device=self.tokens.device).expand(len(self.tokens), C, C)
        above = self.parent
        for _ in range(int(self.depth.max())):
            seen = seen | F.one_hot(above, C).bool()
            above = self.parent.gather(1, above)
        return seen


class Filter:
    """What a block model says of the positions after a text, given tokens for some of them.

    `masked` [B, N] are the open positions of the blocks in which the texts end: known tokens come first, and
    the last of them is a single node, so the candidates before it do not matter.
    """

    def __init__(
        self, model: Model, prediction: Prediction, masked: Tensor, length: int, temperature: Tensor
    ) -> None:
        B, N, K, _ = prediction.hidden.shape
        self.head, self.temperature = model.head, temperature[:, None, None, None]
        at = (~masked).sum(1, keepdim=True) + torch.arange(length, device=masked.device)
        self.exists, rows = at < N, torch.arange(B, device=masked.device)[:, None]
        at = at.clamp(max=N - 1)
        self.hidden, self.links = prediction.hidden[rows, at], prediction.transition_logp[rows, at]
        self.start = F.one_hot(torch.zeros(B, dtype=torch.int64, device=masked.device), K).log()
        self.candidate = torch.arange(K, device=masked.device)
        self.columns = None if self.head.edge is None else self.head.edge_columns()[: self.head.mask_id]
        self.given = 0
        """How many tokens at open positions are given."""

    def after(self, before: Tensor, token: Tensor) -> "Filter":
        """The filter of the positions behind the first open one, given its `token` [B, 1] after the token
        `before` [B, 1]."""
        _, joint = self(0, self.start[:, None], before)
        found, where = copy(self), token[:, :, None, None].expand(-1, 1, joint.shape[2], 1)
        found.start = joint.gather(3, where)[:, 0, :, 0].log_softmax(-1)
        found.hidden, found.links, found.exists = (x[:, 1:] for x in (self.hidden, self.links, self.exists))
        found.given = self.given + 1
        return found

    def __call__(
        self, depth: int, reached: Tensor, token: Tensor, second: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities [B, M, V] of the token `depth` positions ahead, and together with each candidate
        [B, M, K, V], where candidates before it were `reached` [B, M, K] with the last `token` [B, M], and
        the `second` last, which counts where both stand at open positions."""
        prior = (reached[..., None] + self.links[:, depth, None]).logsumexp(2)
        hidden = self.hidden[:, depth]
        logits = self.head.token_logits(hidden, self.candidate)[:, None]  # [B, 1, K, V]
        if self.columns is not None and self.head.edge is not None:
            is_open = torch.full_like(token, depth + self.given > 0, dtype=torch.bool)
            left = Left(token, is_open, second if depth + self.given > 1 else None)
            left = left.map(lambda x: x[..., None].expand(*x.shape, len(self.candidate)))
            inputs = self.head.inputs(hidden, self.candidate)[:, None].expand(*left.token.shape, -1)
            logits = logits + (self.head.edge.factors(inputs, left) @ self.columns.T).to(logits.dtype)
        joint = prior[..., None] + (logits / self.temperature).log_softmax(-1)
        return joint.logsumexp(2), joint


def draft_tree(ahead: Filter, last: Tensor, nodes: int, room: Tensor) -> Draft:
    """The `nodes` likeliest beginnings of what follows `last` [B], at most room [B] tokens long.

    Level by level: a beginning is never likelier than its own beginnings, so those that are among the
    likeliest found so far are all that can have children among the likeliest of all.
    """
    B, K = len(last), len(ahead.candidate)
    rows = torch.arange(B, device=last.device)[:, None]
    token, parent, depth = last[:, None], torch.zeros_like(last)[:, None], torch.zeros_like(last)[:, None]
    score, reached = torch.zeros(B, 1, device=last.device), ahead.start[:, None]
    for level in range(min(nodes, ahead.hidden.shape[1])):
        leaf = (depth == level) & (score > -torch.inf)
        leaf = leaf & ahead.exists[:, level, None] & (level < room[:, None])
        if not (M := int(leaf.sum(1).max())):
            break
        source = leaf.sort(dim=1, descending=True, stable=True).indices[:, :M]
        start = score[rows, source].masked_fill(~leaf[rows, source], -torch.inf)
        before = token[rows, source], token[rows, parent[rows, source]]
        best, which, new, after = _children(ahead, level, start, reached[rows, source], before, nodes)
        token = torch.cat([token, new], 1)
        parent = torch.cat([parent, source[rows, which]], 1)
        depth = torch.cat([depth, torch.full_like(new, level + 1)], 1)
        score, reached = torch.cat([score, best], 1), torch.cat([reached, after], 1)
        kept = score.sort(dim=1, descending=True, stable=True).indices[:, : nodes + 1].sort(1).values
        place = torch.zeros_like(token).scatter(1, kept, torch.arange(kept.shape[1]).expand_as(kept).to(kept))
        parent = place.gather(1, parent).gather(1, kept)
        token, depth, score = (x.gather(1, kept) for x in (token, depth, score))
        reached = reached.gather(1, kept[..., None].expand(*kept.shape, K))
    return Draft(token, parent, depth, score > -torch.inf)


def _children(
    ahead: Filter,
    level: int,
    score: Tensor,
    reached: Tensor,
    before: tuple[Tensor, Tensor],
    nodes: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The likeliest tokens after nodes of score [B, M], at most so many for a row, in the order of their
    probabilities [B, n]: their scores, whose children they are, themselves, and the candidates they leave
    [B, n, K]. `before` are the tokens of the nodes and of their parents. A part of the nodes at a time, so
    that memory stays bounded."""
    B, M, K = reached.shape
    V, found = ahead.head.mask_id, list[tuple[Tensor, ...]]()
    rows, size = torch.arange(B, device=score.device)[:, None], max(1, AT_ONCE // (B * K * V))
    for first in range(0, M, size):
        part = slice(first, first + size)
        logp, joint = ahead(level, reached[:, part], *(x[:, part] for x in before))
        total = (score[:, part, None] + logp).nan_to_num(nan=-torch.inf, neginf=-torch.inf)
        best, at = total.flatten(1).topk(min(nodes, total[0].numel()))
        which, new = at // V, at % V
        found.append((best, first + which, new, joint[rows, which, :, new].log_softmax(-1)))
    if len(found) == 1:
        return found[0]  # type: ignore[return-value]
    best, which, new, after = (torch.cat(parts, 1) for parts in zip(*found, strict=True))
    best, order = best.topk(min(nodes, best.shape[1]))
    return best, which.gather(1, order), new.gather(1, order), after[rows, order]


def look_up(ids: Sequence[int], length: int, longest: int = 3) -> list[int]:
    """What followed the last tokens of a text, at most `longest` of them, where they stood before (prompt
    lookup): a draft without a model. Where that reaches the end of the text, it goes round."""
    for size in range(min(longest, len(ids) - 1), 0, -1):
        tail = list(ids[-size:])
        for first in range(len(ids) - size - 1, -1, -1):
            if ids[first : first + size] == tail:
                after = ids[first + size : first + size + length]
                return [after[i % len(after)] for i in range(length)]
    return []

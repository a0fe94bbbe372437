"""What the places of a chain of tokens are drawn from: the vocabulary, or a shortlist in its place.

What does not depend on the token to the left is done for all places at once, so that a place costs a product
of rank R. Candidates of a shortlist are the tokens that are likeliest without the edges, and the likeliest
successors of the token to the left; probabilities are normalised over them.

n places, M tokens by their base logits, S successors, R rank, V vocabulary without the mask, D width.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dadlm.model.edge import Left
from dadlm.model.emission import Head
from dadlm.model.successors import SUCCESSORS

IN_ONE_LAUNCH = 4096 - SUCCESSORS
"""The longest list that the kernel takes."""
MOST_LOGITS = 1 << 26
"""Of a pass, where those of the whole vocabulary are made for all places at once."""


@dataclass(frozen=True)
class Vocabulary:
    """At some positions of blocks [B, N], before the first token is drawn."""

    place: Tensor
    """[B, N]: where a position is found below."""
    logits: Tensor | None
    """[n, V]: without the edges; None: too many to make them at once."""
    columns: Tensor
    """[V, R]: `Head.edge_columns`."""

    @classmethod
    def of(cls, head: Head, hidden: Tensor, path: Tensor, at: Tensor) -> "Vocabulary":
        """At the flat positions `at` [n] of hidden states [B, N, D] on a path [B, N]."""
        at_once = len(at) * head.mask_id <= MOST_LOGITS
        logits = _base(head, hidden, path, at) if at_once else None
        return cls(_place(path, at), logits, head.edge_columns())

    def score(
        self, head: Head, hidden: Tensor, node: Tensor, left: Left, place: Tensor
    ) -> tuple[Tensor, None]:
        """As of a shortlist, but that its candidates are all tokens."""
        assert head.edge is not None
        base = head.token_logits(hidden, node) if self.logits is None else self.logits[place]
        edge = F.linear(head.edge.factors(head.inputs(hidden, node), left), self.columns)
        return base + edge[:, : base.shape[1]].to(base.dtype), None


@dataclass(frozen=True)
class Shortlist:
    """Of some positions of blocks [B, N], before the first token is drawn."""

    place: Tensor
    """[B, N]: where a position is found below."""
    top: Tensor
    """[n, M]: ids in ascending order, so that M = V is the vocabulary as it stands."""
    top_logits: Tensor
    """[n, M]: without the edges."""
    other_logits: Tensor
    """[n, V]: the same of all tokens but those: what is in both parts counts once."""

    @classmethod
    def of(cls, head: Head, hidden: Tensor, path: Tensor, size: Tensor, most: int, at: Tensor) -> "Shortlist":
        """Of the flat positions `at` [n] of hidden states [B, N, D] on a path [B, N]; `size` [B] is M of each
        row, at most `most`."""
        logits = _base(head, hidden, path, at)
        best, top = logits.topk(min(most, logits.shape[-1]))
        own = torch.arange(top.shape[1], device=at.device) < size[at // path.shape[1], None]
        others = logits.scatter(1, top, best.masked_fill(own, -torch.inf))
        top, order = top.sort(1)
        return cls(_place(path, at), top, best.masked_fill(~own, -torch.inf).gather(1, order), others)

    def score(
        self, head: Head, hidden: Tensor, node: Tensor, left: Left, place: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits of candidates, in fp32, and the candidates [m, M + S], at some places [m]: of hidden states
        [m, D] at nodes [m], after the tokens to their left."""
        assert head.edge is not None and head.successors is not None
        near = head.successors.table[left.token].long()
        tokens = torch.cat([self.top[place], near], 1)
        base = torch.cat([self.top_logits[place], self.other_logits[place].gather(1, near)], 1)
        factors = head.edge.factors(head.inputs(hidden, node), left)
        # One product over all columns: to gather those of the list, for each row its own, takes longer.
        edge = (factors @ head.successors.columns.T).gather(1, tokens)
        return base + edge.to(base.dtype), tokens


def _place(path: Tensor, at: Tensor) -> Tensor:
    """Where the positions `at` [n] are found among themselves, [B, N]."""
    place = torch.zeros_like(path).flatten().index_copy(0, at, torch.arange(len(at), device=at.device))
    return place.view_as(path)


def _base(head: Head, hidden: Tensor, path: Tensor, at: Tensor) -> Tensor:
    """The logits of the positions `at` [n] without the edges, [n, V]."""
    return head.token_logits(hidden.flatten(0, 1)[at], path.flatten()[at])

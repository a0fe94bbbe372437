"""Token edges: a token's score given the token to its left, as part of the emission.

    p(x_i | node, x_{i-1}) = softmax(W·h + s(x_{i-1}, h, ·))

In training x_{i-1} is known, so the emissions of a block stay one number for each node, and the sum over all
paths stays exact. In decoding a token whose left neighbour is open is drawn after it (`decode.chain`).

n nodes, D width, R rank, V vocabulary.
"""

from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from dadlm.model.config import ModelConfig

EdgeName = Literal["none", "bilinear", "mlp"]


class Left(NamedTuple):
    """The left neighbours of some nodes, [n] each."""

    token: Tensor
    is_open: Tensor
    """Masked, so that the backbone has not seen the token."""


def left_of(ids: Tensor, masked: Tensor, before: Tensor) -> Left:
    """The left neighbours in blocks ids [..., N], masked where `masked`, with tokens before them [...]."""
    known = torch.zeros_like(masked[..., :1])
    return Left(torch.cat([before[..., None], ids[..., :-1]], -1), torch.cat([known, masked[..., :-1]], -1))


def on_the_way(masked: Tensor, wanted: Tensor) -> Tensor:
    """[n, N]: the masked positions that are wanted, or followed by a wanted one in the same run."""
    N = masked.shape[1]
    place = torch.arange(N, device=masked.device)

    def next_of(which: Tensor) -> Tensor:
        return torch.where(which, place, N).flip(1).cummin(1).values.flip(1)

    return masked & (next_of(wanted) < next_of(~masked))


class Bilinear(nn.Module):
    """⟨A(x_{i-1}) ⊙ λ(1 + U·h), B(x_i)⟩: R more columns of the vocabulary head, and R more inputs to it.

    λ differs by whether the neighbour is open: the backbone has seen a known one, and what remains to be said
    of it starts at nothing. So does all of it, unless A and B are taken from counts (`train.edges`).
    """

    def __init__(self, config: "ModelConfig") -> None:
        super().__init__()
        R = config.edge_rank
        self.left = nn.Embedding(config.vocab_size, R)
        self.right = nn.Parameter(torch.zeros(config.vocab_size, R))
        self.scale = nn.Parameter(torch.tensor([[0.0], [1.0]]).repeat(1, R))
        self.context = nn.Parameter(torch.zeros(R, config.width))

    def forward(self, hidden: Tensor, left: Left) -> Tensor:
        """Inputs [n, D + R] of the head from hidden states [n, D]."""
        return torch.cat([hidden, self.factors(hidden, left)], -1)

    def factors(self, hidden: Tensor, left: Left) -> Tensor:
        """[n, R]: what `columns` are multiplied with."""
        inner = self.left(left.token) * F.embedding(left.is_open.long(), self.scale)
        return (inner * self.gain(hidden)).to(hidden.dtype)

    def gain(self, hidden: Tensor) -> Tensor:
        """[n, R]: 1 + U·h."""
        return 1 + F.linear(hidden, self.context.to(hidden.dtype))

    def columns(self, weight: Tensor) -> Tensor:
        """[V, R]: times `factors`, what the edge adds to the logits of a head of that weight [V, D]."""
        return self.right


class Mlp(nn.Module):
    """h + f(h, x_{i-1}) before the vocabulary head; f has one hidden layer of R units and starts at zero."""

    right = None  # the head has no columns of its own for it

    def __init__(self, config: "ModelConfig") -> None:
        super().__init__()
        R = config.edge_rank
        self.left = nn.Embedding(config.vocab_size, R)
        self.inner = nn.Linear(config.width, R, bias=False)
        self.scale = nn.Parameter(torch.ones(2, R))
        self.outer = nn.Parameter(torch.zeros(config.width, R))

    def forward(self, hidden: Tensor, left: Left) -> Tensor:
        return hidden + F.linear(self.factors(hidden, left), self.outer.to(hidden.dtype))

    def factors(self, hidden: Tensor, left: Left) -> Tensor:
        inner = F.gelu(self.inner(hidden) + self.left(left.token))
        return (inner * F.embedding(left.is_open.long(), self.scale)).to(hidden.dtype)

    def columns(self, weight: Tensor) -> Tensor:
        return weight @ self.outer.to(weight.dtype)


EDGES: dict[str, type[Bilinear] | type[Mlp] | None] = {"none": None, "bilinear": Bilinear, "mlp": Mlp}

"""Token edges: a token's score given the token to its left, or the two tokens there, as part of the emission.

    p(x_i | node, x_{i-1}, x_{i-2}) = softmax(W·h + s(x_{i-1}, x_{i-2}, h, ·))

In training these tokens are known, so the emission of a node is still one number, and the sum over all paths
is still exact. In decoding a token whose left neighbour is open is drawn after it (`decode.chain`).

n nodes, D width, R rank, S rank of second order, V vocabulary.
"""

from collections.abc import Callable
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
    second: Tensor | None = None
    """The token two places to the left where both are open, elsewhere the mask; None: the mask everywhere."""

    def map(self, change: Callable[[Tensor], Tensor]) -> "Left":
        return Left(*(None if x is None else change(x) for x in self))  # type: ignore[arg-type]


def left_of(ids: Tensor, masked: Tensor, before: Tensor, mask_id: int, second: bool = True) -> Left:
    """The left neighbours in blocks ids [..., N], masked where `masked`, with tokens before them [...]; those
    two places to the left too if `second`, which edges of first order do not look at."""
    known = torch.zeros_like(masked[..., :1])
    left = Left(torch.cat([before[..., None], ids[..., :-1]], -1), torch.cat([known, masked[..., :-1]], -1))
    if not second:
        return left
    both_open = masked[..., :-2] & masked[..., 1:-1]
    tokens = F.pad(ids[..., :-2].masked_fill(~both_open, mask_id), (2, 0), value=mask_id)
    return left._replace(second=tokens[..., : ids.shape[-1]])


def on_the_way(masked: Tensor, wanted: Tensor) -> Tensor:
    """[n, N]: the masked positions that are wanted, or that a wanted one follows in the same run."""
    N = masked.shape[1]
    place = torch.arange(N, device=masked.device)

    def next_of(which: Tensor) -> Tensor:
        return torch.where(which, place, N).flip(1).cummin(1).values.flip(1)

    return masked & (next_of(wanted) < next_of(~masked))


class Bilinear(nn.Module):
    """⟨[λ A(x_{i-1}); C(x_{i-2})] ⊙ (1 + U·h), B(x_i)⟩: R + S more columns of the vocabulary head, and as
    many inputs to it.

    λ depends on whether the neighbour is open: the backbone has seen a known one, so what the edge adds there
    starts at zero. The token before it (S > 0: edges of second order) counts only where both are open. All of
    it starts at zero unless it is taken from counts (`train.edges`).
    """

    def __init__(self, config: "ModelConfig") -> None:
        super().__init__()
        R, S, V = config.edge_rank, config.edge_second_rank, config.vocab_size
        self.left = nn.Embedding(V, R)
        self.second = nn.Embedding(V - 1, S) if S else None  # the mask adds nothing
        self.right = nn.Parameter(torch.zeros(V, R + S))
        self.scale = nn.Parameter(torch.tensor([[0.0], [1.0]]).repeat(1, R))
        self.context = nn.Parameter(torch.zeros(R + S, config.width))

    @property
    def ranks(self) -> tuple[int, int]:
        """R and S."""
        R = self.left.embedding_dim
        return R, self.right.shape[1] - R

    @property
    def second_weight(self) -> Tensor:
        """[V - 1, S], for kernels; not read where S is 0."""
        return self.left.weight if self.second is None else self.second.weight

    def forward(self, hidden: Tensor, left: Left) -> Tensor:
        """Inputs [n, D + R + S] of the head from hidden states [n, D]."""
        return torch.cat([hidden, self.factors(hidden, left)], -1)

    def factors(self, hidden: Tensor, left: Left) -> Tensor:
        """[n, R + S]: what `columns` are multiplied with."""
        inner = self.left(left.token) * F.embedding(left.is_open.long(), self.scale)
        if self.second is not None:
            inner = torch.cat([inner, self._of_second(self.second, left)], -1)
        return (inner * self.gain(hidden)).to(hidden.dtype)

    def _of_second(self, table: nn.Embedding, left: Left) -> Tensor:
        """[n, S]: zeros for the mask."""
        if left.second is None:
            return table.weight.new_zeros(*left.token.shape, table.embedding_dim)
        mask_id = table.num_embeddings
        return table(left.second.clamp(max=mask_id - 1)) * (left.second < mask_id)[..., None]

    def gain(self, hidden: Tensor) -> Tensor:
        """[n, R + S]: 1 + U·h."""
        return 1 + F.linear(hidden, self.context.to(hidden.dtype))

    def columns(self, weight: Tensor) -> Tensor:
        """[V, R + S]: multiplied by `factors`, what the edge adds to the logits of a head [V, D]."""
        return self.right


class Mlp(nn.Module):
    """h + f(h, x_{i-1}) before the vocabulary head; f has one hidden layer of R units and starts at zero."""

    right = second = None  # no columns of the head, and only one token is looked at

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

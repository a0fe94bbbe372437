"""Move rows of tensors by index, with gradients that are moves too; and the padded sizes of the result.

B rows, L positions of a row, P and Q places before and after, F features, R capacity.
"""

from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

_HAS_TRITON = find_spec("triton") is not None
# Compiled GPU code sees at most this many shapes; a count that exceeds one takes the next.
_CAPACITY_SHARES = (0.5, 0.65, 0.8, 1.0)
TILE = 128


class Move(torch.autograd.Function):
    """Gather along dim 1 by a partial bijection; its gradient is the gather by the inverse. Plain indexing
    would scatter-add its gradient: slower, and in no fixed order on CUDA."""

    @staticmethod
    def forward(ctx, x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return take(x, index)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, None, None]:
        return take(grads[0], ctx.saved_tensors[0]), None, None


def take(x: Tensor, index: Tensor) -> Tensor:
    """x [B, P, F...], index [B, Q] → [B, Q, F...]; index -1 gives zeros."""
    if x.is_cuda and _HAS_TRITON:
        from dadlm.nodes.kernels.take import take as take_on_cuda

        return take_on_cuda(x, index)
    row = torch.arange(x.shape[0], device=x.device)[:, None]
    missing = (index < 0).view(*index.shape, *[1] * (x.dim() - 2))
    return x[row, index.clamp(min=0)].masked_fill(missing, 0)


@dataclass(frozen=True)
class Selection:
    """Some of n things, taken out in order and put back; spare capacity stays empty."""

    place: Tensor
    """[1, R]: the thing at each place, -1 for none."""
    rank: Tensor
    """[1, n]: the place of each thing, -1 for none."""

    def take(self, x: Tensor) -> Tensor:
        """[n, F...] → [R, F...], zeros in spare places; the gradient is `put`."""
        return Move.apply(x[None], self.place, self.rank)[0]  # type: ignore[index]

    def put(self, x: Tensor) -> Tensor:
        """[R, F...] → [n, F...], zeros for what was not selected."""
        return Move.apply(x[None], self.rank, self.place)[0]  # type: ignore[index]


def select(wanted: Tensor, capacity: int | None = None) -> Selection:
    """The things for which wanted [n] is true, in `capacity` places (None: as many as there are things)."""
    rank, slot = compact(wanted[None], capacity)
    return Selection(slot, rank)


def compact(wanted: Tensor, capacity: int | None) -> tuple[Tensor, Tensor]:
    """For wanted [B, n]: the place of each wanted thing [B, n], and the thing at each of `capacity`
    places."""
    rank = wanted.cumsum(1) - 1
    if capacity is None:
        capacity = max(1, int(rank[:, -1].max()) + 1)
    thing = torch.arange(wanted.shape[1], device=wanted.device).expand_as(rank)
    # What is not wanted writes to a spare column that is dropped again.
    place = torch.full((len(rank), capacity + 1), -1, device=wanted.device)
    place = place.scatter(1, torch.where(wanted, rank, capacity), thing)[:, :capacity]
    return torch.where(wanted, rank, -1), place.contiguous()


@dataclass(frozen=True)
class PaddedSizes:
    """Without them the sizes are counted on the device, and the host waits for it."""

    nodes: int
    """Packed nodes of a row."""
    masked: int
    """Nodes of masked positions in the whole batch: those that need the vocabulary head."""


def padded_sizes(
    masked: Tensor, block_size: int, candidates: int, start: bool, steps: int = 64
) -> PaddedSizes:
    """Sizes for masks [B, L] on the CPU; masked tokens are counted in `steps` steps up to all tokens."""
    B, L = masked.shape
    extra = L // block_size * int(start)
    counts = masked.numpy().sum(1)  # quicker than torch, which would wake its threads
    step = max(TILE, B * L // steps)
    tokens = max(step, min(-(-int(counts.sum()) // step) * step, B * L))
    most = L + extra + (candidates - 1) * int(counts.max())
    return PaddedSizes(capacity(most, L * candidates + extra, exact=False), tokens * candidates)


def capacity(count: int, full: int, exact: bool) -> int:
    """Places for `count` of at most `full` nodes: exactly that, or the next of a few multiples of a tile."""
    if exact:
        return count
    sizes = (-(-round(share * full) // TILE) * TILE for share in _CAPACITY_SHARES)
    return next(size for size in sizes if size >= count)

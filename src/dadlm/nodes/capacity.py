"""Padded sizes of what depends on the data: few different ones, known before the device begins.

B rows, L positions of a row.
"""

from dataclasses import dataclass

from torch import Tensor

# Compiled GPU code sees at most this many shapes; a count that exceeds one takes the next.
_CAPACITY_SHARES = (0.5, 0.65, 0.8, 1.0)
TILE = 128


@dataclass(frozen=True)
class PaddedSizes:
    """Left out, the sizes are counted on the device, which has to be waited for."""

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
    counts = masked.numpy().sum(1)  # quicker than torch, which would wake its threads for it
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

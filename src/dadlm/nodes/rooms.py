"""Room for nodes whose number depends on the data: decided before the device begins, in few different sizes.

B rows, L positions of a row.
"""

from dataclasses import dataclass

from torch import Tensor

# Compiled GPU code sees at most this many shapes; a count that exceeds one takes the next.
_CAPACITY_SHARES = (0.5, 0.65, 0.8, 1.0)
TILE = 128


@dataclass(frozen=True)
class Rooms:
    """Room for nodes whose number depends on the data, decided before the device begins.

    Left out, it is counted on the device, which has to be waited for.
    """

    nodes: int
    """Packed nodes of a row."""
    masked: int
    """Nodes of masked positions in the whole batch: those that need the vocabulary head."""


def make_rooms(masked: Tensor, block_size: int, candidates: int, start: bool, sizes: int = 64) -> Rooms:
    """Room for the nodes of masks [B, L] that are on the CPU: few different ones come out.

    The masked tokens of the batch are counted in steps of one in `sizes` of all tokens.
    """
    B, L = masked.shape
    extra = L // block_size * int(start)
    counts = masked.numpy().sum(1)  # quicker than torch, which would wake its threads for it
    step = max(TILE, B * L // sizes)
    tokens = max(step, min(-(-int(counts.sum()) // step) * step, B * L))
    most = L + extra + (candidates - 1) * int(counts.max())
    return Rooms(capacity(most, L * candidates + extra, exact=False), tokens * candidates)


def capacity(count: int, full: int, exact: bool) -> int:
    """Room for `count` of at most `full` nodes: exactly that, or the next of a few multiples of a tile."""
    if exact:
        return count
    rooms = (-(-round(share * full) // TILE) * TILE for share in _CAPACITY_SHARES)
    return next(room for room in rooms if room >= count)

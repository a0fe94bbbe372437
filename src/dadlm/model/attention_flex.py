"""The prefix part of attention on CUDA, by flex_attention: trains there only.

The block mask is written down directly instead of evaluated point by point: a query sees a run of keys.
"""

from functools import cache

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

TILE = 128


def fits(queries: int, keys: int) -> bool:
    """Lengths off the tile grid gave wrong values without gradients; they take the plain path."""
    return queries % TILE == 0 and keys % TILE == 0


def prefix_mask(end: Tensor, keys: int) -> BlockMask:
    """Block mask of queries that see the keys before end [B, C].

    Numbers of 32 bits: the kernel compares them with every key of a tile that is not seen whole.
    """
    end = end.int()
    queries = end.view(len(end), 1, -1, TILE)
    tile = torch.arange(keys // TILE, device=end.device, dtype=torch.int32)
    # Of a tile of queries: key tiles that all of them see whole, and the others of which one sees something.
    whole = tile < queries.amin(-1, keepdim=True) // TILE
    some = (tile < (queries.amax(-1, keepdim=True) + TILE - 1) // TILE) & ~whole

    def sees(b, h, q, k):
        return k < end[b, q]

    return BlockMask.from_kv_blocks(
        *(*_listed(some), *_listed(whole)),
        BLOCK_SIZE=TILE,
        mask_mod=sees,
        seq_lengths=(end.shape[1], keys),
    )


def _listed(wanted: Tensor) -> tuple[Tensor, Tensor]:
    """How many of wanted [..., n] there are, and their indices, these first."""
    index = wanted.int().argsort(dim=-1, descending=True, stable=True)
    return wanted.sum(-1, dtype=torch.int32), index.int().contiguous()


@cache
def blockwise_mask(rows: int, length: int, block: int, device: torch.device) -> BlockMask:
    """The mask of whole sequences in which a token sees the blocks up to its own: the same in every step."""
    place = torch.arange(length, device=device).expand(rows, -1)
    return prefix_mask((place // block + 1) * block, length)


@cache
def _flex():
    """Compiled at first use: importing this module must cost nothing."""
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)  # a shape each
    return torch.compile(flex_attention, dynamic=False)


def prefix_flex(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask) -> tuple[Tensor, Tensor]:
    """out [B, C, H, E] and log normaliser [B, C, H] of queries and keys [B, ·, H, E]."""
    out, lse = _flex()(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), block_mask=mask, return_lse=True
    )  # type: ignore[misc]
    return out.transpose(1, 2), lse.transpose(1, 2)

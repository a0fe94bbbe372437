"""The prefix part of attention on CUDA, by flex_attention, for training. Packed queries come in the order of
their blocks: a tile of them sees whole key tiles and then partial ones, so the block mask is written down
directly."""

from functools import cache

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

TILE = 128


def fits(queries: int, keys: int) -> bool:
    """Lengths off the tile grid gave wrong values without gradients; they take the plain path."""
    return queries % TILE == 0 and keys % TILE == 0


def prefix_mask(visible: Tensor, keys: int) -> BlockMask:
    """Block mask of queries that see the first visible [B, C] of `keys` keys."""
    visible = visible.int()  # the kernel compares it with every key of a partial tile
    tiles = visible.view(len(visible), -1, TILE)
    whole = tiles.amin(-1).div(TILE, rounding_mode="floor")[:, None]  # key tiles all queries see
    some = (tiles.amax(-1) + TILE - 1).div(TILE, rounding_mode="floor")[:, None]
    index = torch.arange(keys // TILE, device=visible.device, dtype=torch.int32)
    index = index.expand(*whole.shape, -1).contiguous()
    partial = (whole[..., None] + index).clamp(max=keys // TILE - 1).contiguous()

    def sees(b, h, q, k):
        return k < visible[b, q]

    return BlockMask.from_kv_blocks(
        (some - whole).contiguous(),
        partial,
        whole.contiguous(),
        index,
        BLOCK_SIZE=TILE,
        mask_mod=sees,
        seq_lengths=(visible.shape[1], keys),
    )


@cache
def blockwise_mask(rows: int, length: int, block: int, device: torch.device) -> BlockMask:
    """The mask of whole sequences in which a token sees the blocks up to its own: the same in every step."""
    place = torch.arange(length, device=device)
    return prefix_mask(((place // block + 1) * block).expand(rows, -1).contiguous(), length)


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

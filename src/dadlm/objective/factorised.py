"""The factorised NELBO term: masked tokens predicted independently (MDLM, BD3LM).

B rows, L tokens, G blocks, N block size.
"""

import torch
from torch import Tensor

from dadlm.model import Context, Model
from dadlm.nodes import Rooms, select


def mdlm_nll(
    model: Model, ids: Tensor, masked: Tensor, rooms: Rooms | None = None, length: Tensor | None = None
) -> Tensor:
    """[B, 1]: -log p of the masked tokens of whole rows, which are one block each.

    With `length` [B] a row ends there: what follows is padding, which no token sees.
    """
    visible = None if length is None else length[:, None].expand_as(ids)
    hidden = model.read(ids.masked_fill(masked, model.config.mask_id), visible=visible)
    heads = select(masked.flatten(), None if rooms is None else rooms.masked)
    logp = model.head.target_logp(heads.take(hidden.flatten(0, 1)), heads.take(ids.flatten()))
    return -heads.put(logp).view_as(masked).sum(1, keepdim=True)


def block_nll(
    model: Model, ids: Tensor, masked: Tensor, rooms: Rooms | None = None, chosen: Tensor | None = None
) -> Tensor:
    """[B, G]: -log p of the masked tokens of each block given the clean blocks before it."""
    context = Context()
    model.read(ids, context, only_context=True)
    blocks, hidden_tokens, first = cut(ids, masked, model.config.block_size, chosen)
    denoised = model.denoise(blocks, hidden_tokens, first, context, rooms=rooms)
    return -model.emission_logp(denoised, blocks).sum((-1, -2))


def cut(
    ids: Tensor, masked: Tensor, block_size: int, chosen: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows [B, L] as blocks: ids and masked [B, G, N], and each block's first position [B, G].

    Of rows that are masked C times, masked [B, C·L], every block C times. With `chosen` [B, J] only these.
    """
    B, L = ids.shape
    copies = masked.shape[1] // L
    assert masked.shape[1] == copies * L, "masks of whole rows"
    ids, masked = ids.view(B, -1, block_size), masked.view(B, -1, block_size)
    block = torch.arange(masked.shape[1], device=ids.device).expand(B, -1)
    if chosen is not None:
        block, masked = chosen, masked.gather(1, chosen[..., None].expand(-1, -1, block_size))
    block = block // copies
    if chosen is not None or copies > 1:
        ids = ids.gather(1, block[..., None].expand(-1, -1, block_size))
    return ids, masked, block * block_size

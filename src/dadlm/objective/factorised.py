"""The factorised NELBO term: masked tokens predicted independently (MDLM, BD3LM).

B rows, L tokens, G blocks, N block size.
"""

import torch
from torch import Tensor

from dadlm.model import Context, Model


def mdlm_nll(model: Model, ids: Tensor, masked: Tensor) -> Tensor:
    """[B, 1]: -log p of the masked tokens of whole rows, which are one block each."""
    hidden = model.read(ids.masked_fill(masked, model.config.mask_id))
    nll = torch.zeros_like(masked, dtype=torch.float32)
    nll = nll.masked_scatter(masked, -model.head.target_logp(hidden[masked], ids[masked]))
    return nll.sum(1, keepdim=True)


def block_nll(model: Model, ids: Tensor, masked: Tensor) -> Tensor:
    """[B, G]: -log p of the masked tokens of each block given the clean blocks before it."""
    context = Context()
    model.read(ids, context, only_context=True)
    blocks, hidden_tokens, first = cut(ids, masked, model.config.block_size)
    denoised = model.denoise(blocks, hidden_tokens, first, context)
    return -model.emission_logp(denoised, blocks).sum((-1, -2))


def cut(ids: Tensor, masked: Tensor, block_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows [B, L] as blocks: ids and masked [B, G, N], and each block's first position [B, G]."""
    B, L = ids.shape
    first = torch.arange(0, L, block_size, device=ids.device).expand(B, -1)
    return ids.view(B, -1, block_size), masked.view(B, -1, block_size), first

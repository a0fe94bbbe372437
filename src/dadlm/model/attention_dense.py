"""The slow twin of `attention.attend_nodes`: one softmax over [prefix ; all nodes] under the full mask of the
block diffusion paper."""

import torch
import torch.nn.functional as F
from torch import Tensor

from dadlm.nodes import Nodes


def attend_nodes(
    q: Tensor, k: Tensor, v: Tensor, prefix: tuple[Tensor, Tensor] | None, nodes: Nodes, grad: bool = True
) -> Tensor:
    """Same contract as `attention.attend_nodes`."""
    B, G = nodes.first.shape
    # Not by `visible`: copies of a block see the same prefix, but not one another.
    block = nodes.from_slots(torch.arange(G, device=q.device)[None, :, None].expand(B, G, nodes.slots))
    same_block = block[:, :, None] == block[:, None, :]
    is_key = nodes.from_slots(nodes.is_key)
    mask = same_block & is_key[:, None, :]
    if prefix is not None:
        key = torch.arange(prefix[0].shape[1], device=q.device)
        mask = torch.cat([key < nodes.visible[..., None], mask], -1)
        k, v = torch.cat([prefix[0], k], 1), torch.cat([prefix[1], v], 1)
    # Padding nodes claim to be of block 0 and so share its keys: their output is never read.
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask[:, None], enable_gqa=k.shape[1] < q.shape[1]
    ).transpose(1, 2)

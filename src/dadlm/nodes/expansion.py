"""From one node per position to K per masked one: where DA-DLM parts from BD3LM.

B rows, G blocks, N block size, K candidates, C packed nodes per row, F features.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from dadlm.nodes.layout import Nodes
from dadlm.nodes.moves import take


def expand(x: Tensor, embedding: Tensor, start: Tensor, nodes: Nodes) -> Tensor:
    """Split masked positions into K nodes, and let the start nodes in: collapsed [B, G·N, F] → [B, C, F].

    Candidate k adds row k of `embedding` [K, F], anchors stay as they are, every start node is `start` [F].
    """
    positions = nodes.collapsed.to_slots(x)
    if nodes.node_of_slot is not None:
        return _Expand.apply(positions.flatten(1, 2), embedding, start, nodes)  # type: ignore[return-value]
    B, G, N = nodes.masked.shape  # slots are nodes, as in decoding: this takes fewer kernels
    offset = embedding.to(x.dtype) * nodes.masked[..., None, None]
    slots = (positions[:, :, :, None] + offset).reshape(B, G, N * nodes.candidates, -1)
    return torch.cat([start.to(x.dtype).expand(B, G, 1, -1), slots], 2).flatten(1, 2)


class _Expand(torch.autograd.Function):
    """Straight from positions to packed nodes: written in torch's own steps the slots, of which a third is
    empty, would be made and read four times over, and again for the gradient."""

    @staticmethod
    def forward(ctx, x: Tensor, embedding: Tensor, start: Tensor, nodes: Nodes) -> Tensor:
        ctx.nodes = nodes
        rows = torch.cat([embedding, start[None], torch.zeros_like(start)[None]]).to(x.dtype)
        nothing = nodes.candidates + 1
        which = torch.where(nodes.is_candidate, nodes.candidate, nothing)
        which = which.masked_fill(nodes.is_start, nodes.candidates)
        return take(x, nodes.group) + F.embedding(which, rows)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        nodes = ctx.nodes
        slots = nodes.to_slots(grads[0])
        groups, masked = nodes.groups(slots), nodes.masked.flatten(0, 1).to(slots.dtype)
        # Block by block, because between the groups of two blocks stands a start node.
        to_embedding = (masked[:, None] @ groups.flatten(0, 1).flatten(2)).sum(0).view(groups.shape[3:])
        return groups.sum(3).flatten(1, 2), to_embedding, slots[:, :, 0].sum((0, 1)), None

"""A verifying pass that also drafts: a tree of tokens, and a masked block behind each of its nodes.

Wherever the target leaves the tree, the block that begins there has already been through the layers, so the
next tree needs no pass of its own. Only the token that the target decides at that point is not known yet: it
stands at the first masked position of the block.

B rows, C nodes of a tree, each with a block, N block size, D width.
"""

import torch
from torch import Tensor

from dadlm.model.attention import attend_ahead
from dadlm.model.context import Context
from dadlm.model.network import Model
from dadlm.model.scores import Denoised
from dadlm.nodes import Nodes, expand, lay_out


def read_ahead(
    model: Model, ids: Tensor, context: Context, *, position: Tensor, visible: Tensor, sees: Tensor
) -> tuple[Tensor, list[tuple[Tensor, Tensor]], Denoised]:
    """`Backbone.read_tree` of a model with a causal context, together with [B, C] masked blocks: each begins
    behind its node, and sees what the node sees and the node itself."""
    config, backbone, graph, C = model.config, model.backbone, model.graph, ids.shape[1]
    noisy, follows = ids.new_full((*ids.shape, config.block_size), config.mask_id), sees
    if config.shift:  # the first masked token stands in the place of the node: that must not be seen twice
        noisy[..., 0] = ids
        follows = sees & ~torch.eye(C, dtype=torch.bool, device=ids.device)
    blocks = lay_out(
        torch.ones_like(noisy, dtype=torch.bool),
        position + 1,
        candidates=config.nodes_per_mask,
        start=graph is not None,
        packed=False,
    )
    layers, kept = backbone.layer_list(), list[tuple[Tensor, Tensor]]()

    def through(first: int, last: int, tree: Tensor, x: Tensor, nodes: Nodes) -> tuple[Tensor, Tensor]:
        """Some layers; `x` are the nodes of the blocks."""
        place = nodes.position - nodes.is_candidate.to(position.dtype) if config.shift else nodes.position
        both, place = torch.cat([tree, x], 1), torch.cat([position, place], 1)
        seen = visible[:, :1].expand_as(place)
        noise = torch.arange(place.shape[1], device=ids.device) >= C
        shared = backbone.shared(place, adapted=noise if config.lora_gated else True)
        for index in range(first, last):
            q, k, v = layers[index].project(both, shared)
            kept.append((k[:, :C], v[:, :C]))
            attended = attend_ahead(q, k, v, context[index], seen, sees, nodes, follows)
            both = layers[index].finish(both, attended, shared)
        if last == len(layers):
            both = backbone.finish(both, shared.condition, shared.grad)
        return both[:, :C], both[:, C:]

    tree, x, late = backbone.embed(ids), blocks.collapsed.from_slots(backbone.embed(noisy)), 0
    if graph is not None:
        if late := config.expand_at:
            tree, x = through(0, late, tree, x, blocks.collapsed)
        x = expand(x, graph.candidate, graph.start, blocks)
    tree, x = through(late, len(layers), tree, x, blocks)
    return tree, kept, Denoised(blocks, x, ids)


def block_after(model: Model, denoised: Denoised, node: Tensor) -> Denoised:
    """The block of `node` [B] in each row."""
    nodes, rows = denoised.nodes, torch.arange(len(node), device=node.device)
    masked, first = nodes.masked[rows, node][:, None], nodes.first[rows, node][:, None]
    one = lay_out(masked, first, candidates=nodes.candidates, start=nodes.start, packed=False)
    return Denoised(one, nodes.to_slots(denoised.hidden)[rows, node], denoised.before[rows, node][:, None])

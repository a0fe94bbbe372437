"""Attention in two parts merged by log-sum-exp: the clean prefix, and the inside of the block.

The prefix is long and shared by all blocks of a row: one wide product over packed queries. The inside of a
block is tiny and dense: a batch of small products over slots. Each part returns its output and the log of its
softmax normaliser; merging is then exact. `attention_dense` is the slow twin.

Keys and values may have fewer heads H' than the queries: each then serves H / H' of them, and is repeated
only for those kernels of torch that know one number of heads.

B rows, C queries, L prefix positions, H heads, E head width, G blocks, M slots.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from dadlm.model import kernels
from dadlm.nodes import Nodes

Average = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
NodeAttention = Callable[..., Tensor]
"""`attend_nodes` or its slow twin."""


def attend_read(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, block: int | None, grad: bool = True
) -> Tensor:
    """Queries [B, C, H, E] over keys [B, L, H', E], each seeing the first visible [B, C] of them.

    `block` says that these are whole sequences of which every token sees the blocks up to its own: blocks of
    one token and a single block have kernels that need no mask, and for the others a static one does.
    `grad`: gradients are wanted.
    """
    whole = block == 1 or block == q.shape[1]
    if block is not None and not whole and q.is_cuda and grad:
        from dadlm.model import attention_flex

        if attention_flex.fits(q.shape[1], k.shape[1]):
            mask = attention_flex.blockwise_mask(len(q), q.shape[1], block, q.device)
            return attention_flex.prefix_flex(q, *_for_all(q, k, v), mask)[0]
    if not whole and kernels.attends(q, grad):
        from dadlm.model.kernels.attend import attend

        return attend(q, k, v, visible)[0]
    if q.is_cuda:
        k, v = _for_all(q, k, v)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    grouped = k.shape[1] < q.shape[1]
    if whole:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=block == 1, enable_gqa=grouped)
    else:
        key = torch.arange(k.shape[2], device=k.device)
        mask = (key < visible[..., None])[:, None]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)
    return out.transpose(1, 2)


def attend_nodes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    prefix: tuple[Tensor, Tensor] | None,
    nodes: Nodes,
    average: Average | None = None,
    grad: bool = True,
) -> Tensor:
    """Node queries [B, C, H, E] over their clean prefix and the nodes of their own block. `average` may be a
    compiled `softmax_average`; `grad`: gradients are wanted."""
    if prefix is not None and nodes.is_one_block and kernels.attends(q, grad):
        from dadlm.model.kernels.attend import attend

        return attend(q, *prefix, nodes.visible, (k, v, nodes.is_key[:, 0]))[0]
    seen = None if prefix is None else _prefix(q, *prefix, nodes, grad)
    if kernels.takes(q):
        from dadlm.model.kernels.inside import attend_inside, fits

        if fits(nodes, q):
            return attend_inside(q, k, v, nodes, seen)
    inside = _inside(q, k, v, nodes, average or softmax_average)
    return inside[0] if seen is None else merge(seen, inside)


def attend_one_block(
    q: Tensor, k: Tensor, v: Tensor, prefix: tuple[Tensor, Tensor], nodes: Nodes, turn: tuple[Tensor, Tensor]
) -> Tensor:
    """`attend_nodes` of one block, without gradients, on CUDA: queries and keys come before their rotary
    turn."""
    from dadlm.model.kernels.attend import attend

    is_key = nodes.is_key[:, 0] if nodes.slots > nodes.masked.shape[2] else None  # else every node is a key
    return attend(q, *prefix, nodes.visible, (k, v, is_key), turn=turn)[0]


def attend_and_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    held: tuple[Tensor, Tensor],
    position: Tensor,
    turn: tuple[Tensor, Tensor],
) -> Tensor:
    """One token [B, 1, H, E] at position [B, 1] over what `held` [B, L, H', E] has before it and itself, as
    `attend_one_block`; its keys and values are written there."""
    from dadlm.model.kernels.attend import attend

    return attend(q, *held, position, (k, v, None), turn=turn, place=position)[0]


def attend_tree(
    q: Tensor, k: Tensor, v: Tensor, prefix: tuple[Tensor, Tensor], visible: Tensor, sees: Tensor
) -> Tensor:
    """Queries [B, C, H, E] of nodes of trees over the first visible [B, C] positions of their prefix and over
    the nodes that `sees` [B, C, C] allows, each itself among them. Without gradients."""
    return merge(_seen(q, *prefix, visible, False), _inside_tree(q, k, v, sees))


def attend_ahead(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    prefix: tuple[Tensor, Tensor],
    visible: Tensor,
    sees: Tensor,
    blocks: Nodes,
    follows: Tensor,
) -> Tensor:
    """`attend_tree` of the first C of the queries. Behind them come the nodes of `blocks`, which see the same
    prefix, the nodes of the tree that `follows` [B, G, C] allows their block, and the inside of the block."""
    C = sees.shape[1]
    tree = _inside_tree(q[:, :C], k[:, :C], v[:, :C], sees)
    q_in, k_in, v_in = (blocks.to_slots(x[:, C:]).transpose(2, 3) for x in (q, k, v))  # [B, G, H, M, E]
    k_in, v_in = (
        torch.cat([x[:, :C].transpose(1, 2)[:, None].expand(-1, own.shape[1], -1, -1, -1), own], 3)
        for x, own in ((k, k_in), (v, v_in))
    )
    allowed = torch.cat([follows, blocks.is_key], 2)[:, :, None, None]
    inside = (blocks.from_slots(x.transpose(2, 3)) for x in softmax_average(q_in, k_in, v_in, allowed))
    out, lse = (torch.cat(both, 1) for both in zip(tree, inside, strict=True))
    return merge(_seen(q, *prefix, visible, False), (out, lse))


def merge(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> Tensor:
    """Join two softmax averages [.., E] by their log normalisers [..]; a part that saw nothing has -inf. `b`
    must have seen something: every node sees its own block."""
    (out_a, lse_a), (out_b, lse_b) = a, b
    share = torch.sigmoid(lse_a - lse_b)[..., None]  # = exp(lse_a) / (exp(lse_a) + exp(lse_b)); -inf gives 0
    return (share * out_a + (1 - share) * out_b).to(out_b.dtype)


def softmax_average(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Average of v [.., H', L, E] under the softmax of q·k where allowed, and its log normaliser [.., H, C],
    for queries [.., H, C, E]. A query that may see nothing gets 0 and -inf."""
    scores = _of_heads(q * q.shape[-1] ** -0.5, k.transpose(-1, -2))
    scores = scores.float().masked_fill(~allowed, -torch.inf)
    top = scores.amax(-1, keepdim=True).detach().clamp(min=torch.finfo(torch.float32).min)
    weight = (scores - top).exp()
    total = weight.sum(-1, keepdim=True)
    some = total > 0
    safe = total.masked_fill(~some, 1.0)  # keeps the gradient of the log finite where nothing was seen
    out = _of_heads((weight / safe).to(v.dtype), v)
    return out, (top + safe.log()).masked_fill(~some, -torch.inf).squeeze(-1)


def _for_all(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values once for every head of the queries."""
    group = q.shape[2] // k.shape[2]
    return (k, v) if group == 1 else (k.repeat_interleave(group, 2), v.repeat_interleave(group, 2))


def _of_heads(x: Tensor, shared: Tensor) -> Tensor:
    """The products of each head's x [.., H, C, n] with `shared` [.., H', n, m]; the heads of a group stand
    below one another in one product."""
    heads = shared.shape[-3]
    if x.shape[-3] == heads:
        return x @ shared
    together = x.unflatten(-3, (heads, -1)).flatten(-3, -2) @ shared
    return together.unflatten(-2, (-1, x.shape[-2])).flatten(-4, -3)


def _prefix(q: Tensor, k: Tensor, v: Tensor, nodes: Nodes, grad: bool) -> tuple[Tensor, Tensor]:
    """Packed queries over the clean prefix: out [B, C, H, E], log normaliser [B, C, H]."""
    if q.is_cuda and grad:
        from dadlm.model import attention_flex

        if attention_flex.fits(q.shape[1], k.shape[1]):
            mask = nodes.remember(
                "prefix mask", lambda: attention_flex.prefix_mask(nodes.visible, k.shape[1])
            )
            return attention_flex.prefix_flex(q, *_for_all(q, k, v), mask)
    return _seen(q, k, v, nodes.visible, grad)


def _seen(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, grad: bool) -> tuple[Tensor, Tensor]:
    """Queries [B, C, H, E] over the first visible [B, C] of the keys: out and log normaliser."""
    if kernels.attends(q, grad):
        from dadlm.model.kernels.attend import attend

        return attend(q, k, v, visible, normaliser=True)  # type: ignore[return-value]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    allowed = torch.arange(k.shape[2], device=k.device) < visible[:, None, :, None]
    out, lse = softmax_average(q, k, v, allowed)
    return out.transpose(1, 2), lse.transpose(1, 2)


def _inside_tree(q: Tensor, k: Tensor, v: Tensor, sees: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes of trees over the nodes that they see: out and log normaliser."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out, lse = softmax_average(q, k, v, sees[:, None])
    return out.transpose(1, 2), lse.transpose(1, 2)


def _inside(q: Tensor, k: Tensor, v: Tensor, nodes: Nodes, average: Average) -> tuple[Tensor, Tensor]:
    """Nodes over the nodes of their own block, the start node seen by none: out and log normaliser."""
    q, k, v = (nodes.to_slots(x).transpose(2, 3) for x in (q, k, v))  # [B, G, H, M, E]
    out, lse = average(q, k, v, nodes.is_key[:, :, None, None, :])
    return nodes.from_slots(out.transpose(2, 3)), nodes.from_slots(lse.transpose(2, 3))

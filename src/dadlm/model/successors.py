"""The likeliest successors of every token, whatever the text: a constant of a model with token edges.

Far from known text a model knows little more than how frequent tokens are. What its head adds there for a
token to the left is which tokens follow that one; decoding looks for the next token among them
(`decode.shortlist`).

V vocabulary without the mask, D width, R rank, K candidates, M successors.
"""

import threading
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from dadlm.model.edge import Left
from dadlm.model.layer import refreshed

if TYPE_CHECKING:
    from dadlm.model.network import Model

SUCCESSORS = 1024
_CHUNK = 1 << 24  # scores held at once
_keeping = threading.Lock()


class Successors(NamedTuple):
    """The table, and what it was made of: token y after token x scores base[y] + columns[y]·factors[x]."""

    table: Tensor
    """int32 [V, M]: ids, the likeliest first."""
    columns: Tensor
    """[V, R]: see `Bilinear.columns`."""
    factors: Tensor
    """[V, R]: see `Bilinear.factors`."""
    base: Tensor
    """[V]: logits without the edges."""


@torch.inference_mode()
def keep_successors(model: "Model") -> Successors:
    """The successors of a model in eval mode, found anew only if its weights have changed: V² scores take
    time. New values are written over the old ones, where captured graphs read them."""
    with _keeping, torch.autocast(model.device.type, enabled=False):
        old, made_of = model.head.successors, _parts(model)
        if old is None or not all(map(_same, old[1:], made_of)):
            old = refreshed(old, (_table(*made_of), *(x.clone() for x in made_of)))
            model.head.successors = Successors(*old)  # type: ignore[arg-type]
        assert model.head.successors is not None
        return model.head.successors


def _parts(model: "Model") -> tuple[Tensor, Tensor, Tensor]:
    """From the last position of a fully masked block with nothing before it, farthest from known text."""
    head, device = model.head, model.device
    assert head.edge is not None
    ids = torch.zeros(1, 1, model.config.block_size, dtype=torch.int64, device=device)
    denoised = model.denoise(ids, torch.ones_like(ids, dtype=torch.bool), ids[..., 0], None)
    nodes = denoised.nodes
    hidden = nodes.groups(nodes.to_slots(denoised.hidden))[0, 0, -1]  # [K, D]
    candidate = torch.arange(len(hidden), device=device)
    token = torch.arange(head.mask_id, device=device)
    mean = head.inputs(hidden, candidate).mean(0).expand(len(token), -1)
    return (
        head.edge.columns(head.linear.weight)[: head.mask_id],
        head.edge.factors(mean, Left(token, torch.ones_like(token, dtype=torch.bool))),
        head.token_logits(hidden, candidate).log_softmax(-1).logsumexp(0),
    )


def _table(columns: Tensor, factors: Tensor, base: Tensor) -> Tensor:
    count = min(SUCCESSORS, len(base))
    pieces = factors.split(max(1, _CHUNK // len(base)))
    return torch.cat(
        [(base + (some @ columns.T).to(base.dtype)).topk(count).indices.int() for some in pieces]
    )


def _same(one: Tensor, other: Tensor) -> bool:
    kinds = {(x.shape, x.dtype, x.device) for x in (one, other)}
    return len(kinds) == 1 and torch.equal(one, other)

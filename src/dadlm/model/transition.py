"""Transitions: from every node to the candidates of the next group, normalised over these.

Both forms give transition_logp [B, G, N, K, K] as `dag` wants it: [i, j, k] from node j of group i-1 to
node k of group i, with the start-of-block node as the only source of group 0 (repeated over j).

B rows, C nodes, D width, G blocks, N block size, K candidates, H heads, E head width.
"""

from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dadlm.errors import ConfigError
from dadlm.model import kernels
from dadlm.nodes import Nodes

if TYPE_CHECKING:
    from dadlm.model.config import ModelConfig


def _sources(x: Tensor, nodes: Nodes) -> Tensor:
    """Packed [B, C, F...] → what leaves group i-1, at index i: [B, G, N, K, F...]."""
    slots = nodes.to_slots(x)
    groups = nodes.groups(slots)
    start = slots[:, :, :1, None].expand_as(groups[:, :, :1])
    return torch.cat([start, groups[:, :, :-1]], 2)


def _scores(q: Tensor, k: Tensor, nodes: Nodes, heads: int) -> Tensor:
    """Packed q and k [B, C, D] → q·k / sqrt(E) of adjacent groups, [B, G, N, H, K, K]. In fp32 even under
    autocast: errors add up along a path."""
    if kernels.takes(q):
        from dadlm.model.kernels import links

        if links.fits(nodes, q.shape[-1] // heads):
            return links.scores(q, k, nodes, heads)
    both = (_sources(q, nodes), nodes.groups(nodes.to_slots(k)))
    sources, targets = (x.unflatten(-1, (heads, -1)).transpose(3, 4).float() for x in both)
    with torch.autocast(q.device.type, enabled=False):
        return (sources @ targets.transpose(-1, -2)) * sources.shape[-1] ** -0.5


def _track(nodes: Nodes) -> Tensor:
    """[B, G, N, K, K] bool: the same candidate index in two adjacent candidate groups. Not from the start
    node and not from an anchor: biased there, candidate 0 would starve the others."""
    pair = nodes.masked.clone()
    pair[:, :, 0] = False
    pair[:, :, 1:] &= nodes.masked[:, :, :-1]
    same = torch.eye(nodes.candidates, dtype=torch.bool, device=pair.device)
    return pair[..., None, None] & same


class SingleTransition(nn.Module):
    """The paper's equation: softmax over the next group of q·k / sqrt(d)."""

    def __init__(self, config: "ModelConfig") -> None:
        super().__init__()
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = nn.Linear(config.width, config.width, bias=False)
        bias = config.track_bias
        self.bias = None if bias is None else nn.Parameter(torch.tensor(float(bias)))

    def forward(self, hidden: Tensor, nodes: Nodes, grad: bool = True) -> Tensor:
        logits = _scores(self.query(hidden), self.key(hidden), nodes, 1).squeeze(3)
        if self.bias is not None:
            logits = logits + self.bias * _track(nodes)
        return logits.masked_fill(~nodes.active[..., None, :], -torch.inf).log_softmax(-1)


class GatedTransition(nn.Module):
    """Several heads over [hidden ; position in the block], mixed by a gate from the source node, as in the
    Directed Acyclic Transformer: log T = logsumexp over heads of (log softmax of the head + log gate)."""

    def __init__(self, config: "ModelConfig") -> None:
        super().__init__()
        width, self.heads = config.width, config.heads
        if width % self.heads:  # attention need not divide the width: head_width may be given
            raise ConfigError(
                f"gated transitions need a width that is a multiple of heads, got {width} and {self.heads}: "
                "choose others, or transition single"
            )
        self.position = nn.Embedding(config.block_size + 1, width)
        self.query = nn.Linear(2 * width, width)
        self.key = nn.Linear(2 * width, width)
        self.gate = nn.Linear(2 * width, config.heads)
        bias = config.track_bias
        self.bias = None if bias is None else nn.Parameter(torch.full((config.heads,), float(bias)))

    def forward(self, hidden: Tensor, nodes: Nodes, grad: bool = True) -> Tensor:
        place = nodes.position - nodes.visible + 1  # 0 is the start node, 1..N the positions
        query, key, gate = self._project(hidden, place.clamp(min=0), grad)
        logits = _scores(query, key, nodes, self.heads)
        if kernels.usable(logits, grad):
            from dadlm.model.kernels.mix import fits, mix

            if fits(nodes, self.heads):
                return mix(logits, gate, self.bias, nodes)
        if self.bias is not None:
            logits = logits + self.bias[:, None, None] * _track(nodes)[:, :, :, None]
        inactive = ~nodes.active[:, :, :, None, None, :]
        head_logp = logits.masked_fill(inactive, -torch.inf).log_softmax(-1)
        gate = _sources(gate.float(), nodes).log_softmax(-1).transpose(3, 4)[..., None]
        # logsumexp over heads that are all -inf would give NaN gradients: fill, mix, and mask again.
        mixed = (head_logp.masked_fill(inactive, 0.0) + gate).logsumexp(3)
        return mixed.masked_fill(inactive.squeeze(3), -torch.inf)

    def _project(self, hidden: Tensor, place: Tensor, grad: bool) -> list[Tensor]:
        """Queries, keys and gates of [hidden ; position]."""
        parts = (self.query, self.key, self.gate)
        if not grad:  # fewer kernels
            hidden = torch.cat([hidden, self.position(place).to(hidden.dtype)], -1)
            return [linear(hidden) for linear in parts]
        # As the sum of both halves: half the arithmetic. The few positions are projected once, and their
        # gradient is a product instead of a sum node by node.
        chosen, found = F.one_hot(place, len(self.position.weight)).to(hidden.dtype), []
        for linear in parts:
            first, second = linear.weight.chunk(2, -1)
            table = F.linear(self.position.weight, second, linear.bias)
            found.append(F.linear(hidden, first) + (chosen @ table).to(hidden.dtype))
        return found


TransitionName = Literal["single", "gated"]
TRANSITIONS: dict[str, type[nn.Module]] = {"single": SingleTransition, "gated": GatedTransition}
"""A new one is a class above and an entry here."""

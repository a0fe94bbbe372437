"""The whole network once more, written from the notes for one row, node by node and in fp64.

Everything stands in one list: the noisy nodes, then the clean tokens. A mask says who sees whom, positions
restart for the clean half, and nothing is packed, merged, cached or batched.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dadlm.model import Model
from dadlm.model.layer import Layer


@dataclass(frozen=True)
class Node:
    """A noisy node, a start node or a clean token of one row."""

    clean: bool
    block: int
    position: int
    masked: bool = False
    start: bool = False
    candidate: int = 0


def sees(query: Node, key: Node, causal: bool) -> bool:
    """The three rules of block diffusion, or with a causal context; the start node is a key for nobody."""
    if key.start:
        return False
    if causal and query.clean and key.clean:
        return key.position <= query.position
    if query.clean == key.clean:
        return key.block <= query.block if query.clean else key.block == query.block
    return key.clean and key.block < query.block


def reference(model: Model, ids: Tensor, masked: Tensor) -> tuple[dict[tuple[int, int, int], Tensor], Tensor]:
    """Final hidden states of ids [L] masked at masked [L]. Of the noisy nodes by (block, place, candidate),
    place -1 being the start node; of the clean ones [L, D]."""
    config, weight = model.config, {name: p.detach().double() for name, p in model.named_parameters()}
    graph, N = model.graph, config.block_size
    noisy: list[Node] = []
    rows: list[Tensor] = []
    for block in range(len(ids) // N):
        for position in range(block * N, block * N + N):
            hidden = bool(masked[position])
            noisy.append(Node(clean=False, block=block, position=position, masked=hidden))
            token = config.mask_id if hidden else int(ids[position])
            rows.append(weight["backbone.embedding.weight"][token])
    clean = [Node(clean=True, block=i // N, position=i) for i in range(len(ids))]
    x = torch.stack(rows + [weight["backbone.embedding.weight"][int(i)] for i in ids])
    for index in range(config.layers):
        if graph is not None and index == config.expand_at:
            noisy, x = _expand(noisy, x, weight["graph.candidate"], weight["graph.start"])
        x = _layer(model, index, x, noisy + clean)
    x = _norm(model, x, weight["backbone.norm.weight"])
    if model.backbone.condition is not None:
        shift, scale = _modulation(weight, "backbone.modulation", 2)
        x = x * (1 + scale) + shift
    places = [(n.block, -1 if n.start else n.position - n.block * N, n.candidate) for n in noisy]
    return dict(zip(places, x, strict=False)), x[len(noisy) :]


def _expand(noisy: list[Node], x: Tensor, candidate: Tensor, start: Tensor) -> tuple[list[Node], Tensor]:
    nodes, rows, block = [], [], -1
    for node, row in zip(noisy, x, strict=False):
        if node.block > block:
            block = node.block
            nodes.append(Node(clean=False, block=block, position=node.position - 1, start=True))
            rows.append(start)
        for k in range(len(candidate) if node.masked else 1):
            nodes.append(Node(**{**vars(node), "candidate": k}))
            rows.append(row + candidate[k] if node.masked else row)
    return nodes, torch.cat([torch.stack(rows), x[len(noisy) :]])


def _layer(model: Model, index: int, x: Tensor, nodes: list[Node]) -> Tensor:
    layer = model.backbone.layers[index]
    assert isinstance(layer, Layer)
    weight = {name: p.detach().double() for name, p in model.named_parameters()}
    own = {name: p.detach().double() for name, p in layer.named_parameters()}
    zero, one = torch.zeros(1).double(), torch.ones(1).double()
    parts = (zero, zero, one, zero, zero, one)
    if layer.modulation.linear is not None:
        parts = _modulation(weight, f"backbone.layers.{index}.modulation", 6)
    shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = parts
    width, heads = model.config.width, model.config.heads

    h = _norm(model, x, own["norm_attention.weight"]) * (1 + scale_1) + shift_1
    q, k, v = (h @ own["qkv.weight"].T).view(len(x), 3, heads, width // heads).unbind(1)
    q, k = (_rotate(y, [node.position for node in nodes]) for y in (q, k))
    allowed = torch.tensor(
        [[sees(query, key, model.config.causal_context) for key in nodes] for query in nodes]
    )
    out = torch.zeros_like(q)
    for head in range(heads):
        scores = q[:, head] @ k[:, head].T / math.sqrt(width // heads)
        out[:, head] = scores.masked_fill(~allowed, -math.inf).softmax(-1) @ v[:, head]
    x = x + gate_1 * (out.reshape(len(x), width) @ own["out.weight"].T)

    h = _norm(model, x, own["norm_mlp.weight"]) * (1 + scale_2) + shift_2
    h = h @ own["up.weight"].T + own.get("up.bias", zero)
    h = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
    return x + gate_2 * (h @ own["down.weight"].T + own.get("down.bias", zero))


def _norm(model: Model, x: Tensor, weight: Tensor) -> Tensor:
    if model.config.architecture == "bd3lm":
        centred = x - x.mean(-1, keepdim=True)
        return weight * centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def _modulation(weight: dict[str, Tensor], name: str, parts: int) -> tuple[Tensor, ...]:
    """adaLN from the embedding of sigma = 0: 128 cosines (1), 128 sines (0), two layers with SiLU."""
    c = torch.tensor([1.0] * 128 + [0.0] * 128).double()
    for part in ("first", "second"):
        at = f"backbone.condition.{part}"
        c = F.silu(weight[f"{at}.weight"] @ c + weight[f"{at}.bias"])
    return (weight[f"{name}.linear.weight"] @ c + weight[f"{name}.linear.bias"]).chunk(parts)


def _rotate(x: Tensor, positions: list[int]) -> Tensor:
    """Pairs (a, b) half a head apart, turned as complex numbers by position · 10000^(-2i/E)."""
    half = x.shape[-1] // 2
    speed = torch.tensor([10000.0 ** (-2 * i / x.shape[-1]) for i in range(half)]).double()
    angle = torch.tensor(positions).double()[:, None, None] * speed
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], -1)

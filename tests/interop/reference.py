"""Block diffusion written straight from the notes, on published tensors: one list [x_t ; x_0] under one mask.

Slow and plain, in fp64: no cache, no packing, no batch. It knows the published names, not our model;
of dadlm it uses the random numbers only, which are a documented hash.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from dadlm import counter


class Reference:
    def __init__(self, tensors: dict[str, Tensor], *, heads: int, block: int) -> None:
        self.weight = {name: tensor.double() for name, tensor in tensors.items()}
        self.heads, self.block = heads, block
        self.layers = len({name.split(".")[2] for name in tensors if name.startswith("backbone.blocks.")})
        self.mask = len(tensors["backbone.vocab_embed.embedding"]) - 1

    def logp(self, noisy: Tensor, clean: Tensor) -> Tensor:
        """SUBS: log-probabilities [n, V] of every position of noisy [n] given the clean blocks before it."""
        n = len(noisy)
        x = self.weight["backbone.vocab_embed.embedding"][torch.cat([noisy, clean])]
        allowed, position = self.allowed(n), torch.arange(n).repeat(2)
        c = self.condition()
        for index in range(self.layers):
            x = self.layer(f"backbone.blocks.{index}", x, c, allowed, position)
        shift, scale = self.linear("backbone.output_layer.adaLN_modulation", c).chunk(2)
        x = self.norm("backbone.output_layer.norm_final.weight", x[:n]) * (1 + scale) + shift
        logits = self.linear("backbone.output_layer.linear", x)
        logits[:, self.mask] = -math.inf
        known = F.one_hot(noisy, self.mask + 1).double().log()
        return torch.where((noisy == self.mask)[:, None], logits.log_softmax(-1), known)

    def loss(self, ids: Tensor, masked: Tensor, time: Tensor) -> Tensor:
        """Σ -log p / t over the masked tokens of each block [n / block]."""
        logp = self.logp(ids.masked_fill(masked, self.mask), ids)
        nll = -logp[torch.arange(len(ids)), ids].masked_fill(~masked, 0.0)
        return nll.view(-1, self.block).sum(1) / time

    def sample(self, prompt: list[int], new: int, seed: int, top_p: float, eot: int) -> list[int]:
        """First-hitting: predict every masked position of the block, keep one chosen at random, again."""
        text = list(prompt)
        end = len(prompt) + new
        while len(text) < end and eot not in text[len(prompt) :]:
            number, known = divmod(len(text), self.block)
            text += [self.mask] * (self.block - known)
            for step in range(self.block - known):
                u = self.uniform(seed, number, step, counter.REVEAL)
                here = text[number * self.block :]
                place = max((i for i, id_ in enumerate(here) if id_ == self.mask), key=lambda i: float(u[i]))
                # The clean half of the block itself holds masks, and nobody sees it.
                logp = self.logp(torch.tensor(text), torch.tensor(text))[number * self.block + place]
                draw = float(self.uniform(seed, number, step, counter.TOKEN)[place])
                text[number * self.block + place] = _draw(logp.exp(), draw, top_p)
        written = text[len(prompt) : end]
        return written[: written.index(eot) + 1] if eot in written else written

    def uniform(self, seed: int, block: int, step: int, purpose: int) -> Tensor:
        return counter.uniform(seed, block, step, torch.arange(self.block), purpose)

    def allowed(self, n: int) -> Tensor:
        """[2n, 2n]: the three rules."""
        half, block = torch.arange(2 * n) // n, torch.arange(n).repeat(2) // self.block
        q_clean, k_clean = half[:, None] == 1, half[None] == 1
        q, k = block[:, None], block[None]
        own = (q_clean == k_clean) & (q == k)
        before = ~q_clean & k_clean & (k < q)
        return own | before | (q_clean & k_clean & (k <= q))

    def condition(self) -> Tensor:
        """The embedding of sigma = 0."""
        angles = torch.zeros(128).double()
        c = torch.cat([angles.cos(), angles.sin()])
        c = F.silu(self.linear("backbone.sigma_map.mlp.0", c))
        return F.silu(self.linear("backbone.sigma_map.mlp.2", c))

    def layer(self, at: str, x: Tensor, c: Tensor, allowed: Tensor, position: Tensor) -> Tensor:
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = self.linear(f"{at}.adaLN_modulation", c).chunk(6)
        h = self.norm(f"{at}.norm1.weight", x) * (1 + scale_1) + shift_1
        q, k, v = (h @ self.weight[f"{at}.attn_qkv.weight"].T).chunk(3, -1)
        heads = [
            self.head(*(y.chunk(self.heads, -1)[i] for y in (q, k, v)), allowed, position)
            for i in range(self.heads)
        ]
        x = x + gate_1 * (torch.cat(heads, -1) @ self.weight[f"{at}.attn_out.weight"].T)
        h = self.norm(f"{at}.norm2.weight", x) * (1 + scale_2) + shift_2
        h = F.gelu(self.linear(f"{at}.mlp.0", h), approximate="tanh")
        return x + gate_2 * self.linear(f"{at}.mlp.2", h)

    def head(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, position: Tensor) -> Tensor:
        q, k = (_rotate(y, position) for y in (q, k))
        scores = (q @ k.T / math.sqrt(q.shape[-1])).masked_fill(~allowed, -math.inf)
        return scores.softmax(-1) @ v

    def norm(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:]) * self.weight[name]

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weight[f"{name}.weight"].T + self.weight[f"{name}.bias"]


def _rotate(x: Tensor, position: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    angle = position[:, None] * 10000.0 ** (-torch.arange(a.shape[-1]).double() / a.shape[-1])
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def _draw(probability: Tensor, uniform: float, top_p: float) -> int:
    """Inverse CDF, in the order of the ids, over the smallest set of tokens that reaches top_p."""
    order = sorted(range(len(probability)), key=lambda id_: -float(probability[id_]))
    kept, mass = [], 0.0
    for id_ in order:
        if mass >= top_p:
            break
        kept.append(id_)
        mass += float(probability[id_])
    level, total = uniform * mass, 0.0
    for id_ in sorted(kept):
        total += float(probability[id_])
        if total > level:
            return id_
    return max(kept)

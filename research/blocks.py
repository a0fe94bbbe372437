"""Texts of block models by samplers that need extra forward passes, which the library's samplers cannot have.

The loop is that of `dadlm.generate` on a CPU: keys and values of the finished text are cached, and rows whose
block is finished leave the batch. With `Independent` the texts are the same, as a test verifies. All passes
are counted.

R rows, n rows of a pass, N block size, V vocabulary without the mask.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from dadlm import counter
from dadlm.decode.cache import Cache
from dadlm.decode.predict import predict_blocks
from dadlm.decode.sample import draw_tokens
from dadlm.decode.samplers import SAMPLERS
from dadlm.decode.samplers.base import block_uniform
from dadlm.model import Model
from dadlm.nodes import Nodes


class Blocks:
    """One block of each row, after a text whose keys and values are there. BD3LM without edges."""

    def __init__(self, model: Model, prompts: Tensor, new: int) -> None:
        assert model.config.family == "bd3lm" and model.head.edge is None, "one distribution a position"
        self.model, self.N = model, model.config.block_size
        R, self.first = prompts.shape
        assert not self.first % self.N and not new % self.N, "whole blocks"
        self.text = F.pad(prompts, (0, new))
        self.cache = Cache(model, R, self.first + new)
        self.read(0, self.first)
        self.begin()

    def read(self, start: int, stop: int) -> None:
        """Keep the keys and values of these positions."""
        position = torch.arange(start, stop).expand(len(self.text), -1)
        view = self.cache.view(slice(0, len(self.text)), self.text, stop)
        self.model.read(self.text[:, start:stop], view, position=position, only_context=True)

    def begin(self) -> None:
        shape = len(self.text), self.N
        self.ids, self.masked = torch.zeros(shape, dtype=torch.int64), torch.ones(shape, dtype=torch.bool)
        self.step = torch.zeros(shape[0], dtype=torch.int64)

    def finish(self) -> None:
        """Write the block down and begin the next one."""
        self.text[:, self.first : self.first + self.N] = self.ids
        self.first += self.N
        if self.first < self.text.shape[1]:
            self.read(self.first - self.N, self.first)
        self.begin()

    def logp(self, rows: Tensor, ids: Tensor, masked: Tensor) -> Tensor:
        """[n, N, V]: what one pass says of blocks ids [n, N] in the place of those of these rows [n]."""
        where = slice(0, len(self.text)) if len(rows) == len(self.text) else rows
        view = self.cache.view(where, self.text, self.first)
        first = torch.full((len(rows), 1), self.first)
        hidden = predict_blocks(self.model, ids, masked, first, view).hidden.squeeze(2)
        return self.model.head.token_logits(hidden).log_softmax(-1)

    @contextmanager
    def looking_left(self) -> Iterator[None]:
        """Passes in which a position of the block sees what stands to its left in the block, and itself."""
        before, self.model.backbone.attend_nodes = self.model.backbone.attend_nodes, attend_left
        try:
            yield
        finally:
            self.model.backbone.attend_nodes = before


def attend_left(
    q: Tensor, k: Tensor, v: Tensor, prefix: tuple[Tensor, Tensor], nodes: Nodes, grad: bool = True
) -> Tensor:
    """`attention_dense.attend_nodes` of one block under a causal mask."""
    del grad
    place = torch.arange(nodes.slots)
    inside = (place <= place[:, None]).expand(len(q), -1, -1)
    before = torch.arange(prefix[0].shape[1]) < nodes.visible[..., None]
    mask = torch.cat([before, inside], -1)[:, None]
    k, v = torch.cat([prefix[0], k], 1), torch.cat([prefix[1], v], 1)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)


@dataclass
class Work:
    """What a sampler sees of the rows that are not decided, and how many passes it has asked for."""

    blocks: Blocks
    rows: Tensor
    """[n]."""
    seed: Tensor
    top_p: float
    passes: Counter[str] = field(default_factory=Counter)
    """By kind: `draw`, and what else a sampler needs."""

    def __post_init__(self) -> None:
        self.ids, self.masked = self.blocks.ids[self.rows], self.blocks.masked[self.rows]
        self.step, self.number = self.blocks.step[self.rows], self.blocks.first // self.blocks.N

    def logp(
        self,
        kind: str,
        rows: Tensor | slice = slice(None),
        *,
        ids: Tensor | None = None,
        masked: Tensor | None = None,
    ) -> Tensor:
        """A pass over these of the rows; `ids` and `masked` other than they are, if given."""
        ids = self.ids[rows] if ids is None else ids
        masked = self.masked[rows] if masked is None else masked
        self.passes[kind] += len(ids)
        return self.blocks.logp(self.rows[rows], ids, masked)

    def uniform(self, purpose: int) -> Tensor:
        """[n, N]: the numbers that the library would draw with."""
        number = torch.full_like(self.step, self.number)
        return block_uniform(self.seed[self.rows], number, self.step, self.blocks.N, purpose)

    def draw(self, logp: Tensor, uniform: Tensor) -> Tensor:
        return draw_tokens(logp, uniform, 1.0, self.top_p, "standard")

    def due(self, steps: int) -> tuple[Tensor, Tensor]:
        """What random remasking with so many steps a block keeps now [n, N], and its number of the step."""
        number = torch.full_like(self.step, self.number)
        plan = SAMPLERS["random"].begin(
            self.seed[self.rows], number, torch.full_like(self.step, steps), self.blocks.N, steps
        )
        assert plan is not None
        at = torch.maximum(self.step, plan.masked_fill(~self.masked, steps).amin(1))
        return self.masked & (plan <= at[:, None]), at


class Rival(ABC):
    """A way to write a block, step by step."""

    @abstractmethod
    def __call__(self, work: Work) -> tuple[Tensor, Tensor, Tensor]:
        """One step: tokens [n, N], which of them are kept [n, N], and the number of the step [n]."""

    def join(self, blocks: Blocks) -> None:
        """New rows begin."""
        del blocks


class Independent(Rival):
    """Each token from its own distribution, in T random steps: the library's random sampler."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __call__(self, work: Work) -> tuple[Tensor, Tensor, Tensor]:
        tokens = work.draw(work.logp("draw"), work.uniform(counter.TOKEN))
        return tokens, *work.due(self.steps)


class Even(Rival):
    """As `Independent`, but each step keeps N / T positions, drawn from those that are left."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __call__(self, work: Work) -> tuple[Tensor, Tensor, Tensor]:
        tokens = work.draw(work.logp("draw"), work.uniform(counter.TOKEN))
        lot = work.uniform(counter.REVEAL).masked_fill(~work.masked, 2.0)
        drawn = lot.sort(dim=1).indices[:, : work.blocks.N // self.steps]
        return tokens, work.masked & torch.zeros_like(work.masked).scatter(1, drawn, True), work.step


@torch.inference_mode()
def write(
    model: Model,
    prompts: Tensor,
    new: int,
    rival: Rival,
    *,
    seed: int = 0,
    top_p: float = 0.9,
    batch: int = 32,
) -> tuple[Tensor, Counter[str]]:
    """Texts [R, new] after prompts [R, P], and how many passes they took, all rows together."""
    seeds, written, passes = torch.arange(seed, seed + len(prompts)), list[Tensor](), Counter[str]()
    for some, row_seeds in zip(prompts.split(batch), seeds.split(batch), strict=True):
        blocks = Blocks(model, some, new)
        rival.join(blocks)
        while blocks.first < blocks.text.shape[1]:
            while len(rows := blocks.masked.any(1).nonzero().squeeze(1)):
                tokens, kept, at = rival(Work(blocks, rows, row_seeds, top_p, passes))
                blocks.ids[rows] = torch.where(kept, tokens, blocks.ids[rows])
                blocks.masked[rows] &= ~kept
                blocks.step[rows] = at + 1
            blocks.finish()
        written.append(blocks.text[:, some.shape[1] :])
    return torch.cat(written), passes

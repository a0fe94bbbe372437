"""Random remasking on the exact uniform grid: step s of T reveals a masked position with probability 1 / (T -
s)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from dadlm import counter
from dadlm.decode.samplers.base import Block, Proposal, Sampler

_STEPS_AT_ONCE = 64  # bounds the memory of `begin` for long windows


class Random(Sampler):
    """The step that reveals each position is drawn when the block begins (`Block.plan`).

    A step that would keep nothing changes nothing, and a model that does not see the time would answer the
    same again: such steps are skipped, row by row.
    """

    name = "random"
    summary = "a random share, so that a block takes at most `steps` steps"
    options = ("steps",)

    def begin(self, seed: Tensor, number: Tensor, steps: Tensor, positions: int, most_steps: int) -> Tensor:
        reveal = steps[:, None].expand(-1, positions) - 1
        position = torch.arange(positions, device=seed.device)
        for first in range(0, most_steps, _STEPS_AT_ONCE):
            step = torch.arange(first, min(first + _STEPS_AT_ONCE, most_steps), device=seed.device)[:, None]
            u = counter.uniform(seed[:, None, None], number[:, None, None], step, position, counter.REMASK)
            left = steps[:, None, None] - step  # [B, steps, 1]
            hit = (u < 1.0 / left.clamp(min=1)) & (left > 0)
            reveal = torch.where(hit.any(1), torch.minimum(reveal, first + hit.int().argmax(1)), reveal)
        return reveal

    def keep(self, block: Block, infilled: Tensor, settings: object, proposal: Proposal | None = None):
        del settings, proposal
        masked, reveal = block.masked, block.plan
        due = reveal.masked_fill(~masked, torch.iinfo(reveal.dtype).max).amin(1)
        at = torch.where(infilled.any(1) | ~masked.any(1), block.step, torch.maximum(block.step, due))
        return infilled | (masked & (reveal <= at[:, None])), at

    def kept_per_pass(self, block: Block) -> list[int]:
        steps = torch.where(block.masked, block.plan, -1).cpu().sort(1).values
        # The passes of a row are its different steps, in order.
        number = (steps != F.pad(steps[:, :-1], (1, 0), value=-1)).cumsum(1) - 1
        return number[steps >= 0].bincount().tolist()

"""First-hitting: every step keeps one position, drawn uniformly among the masked ones."""

import torch
from torch import Tensor

from dadlm import counter
from dadlm.decode.samplers.base import Block, Proposal, Sampler, highest
from dadlm.model import kernels


class FirstHitting(Sampler):
    name = "first-hitting"
    summary = "one position at random"

    def keep(self, block: Block, infilled: Tensor, settings: object, proposal: Proposal | None = None):
        del settings, proposal
        if block.masked.shape[1] == 1:
            return block.masked, block.step  # nothing to choose
        if kernels.takes(block.masked):
            from dadlm.decode.kernels.tokens import reveal

            return reveal(block.masked, infilled, block.counters, counter.REVEAL), block.step
        candidates = block.masked > infilled  # and not infilled: one launch instead of two
        u = torch.where(candidates, block.uniform(counter.REVEAL), -1.0)
        return torch.where(candidates, highest(u), infilled), block.step

    def most(self, positions: int) -> int:
        return 1

    def kept_per_pass(self, block: Block) -> list[int]:
        return [len(block.masked)] * int(block.masked.sum(1).max())

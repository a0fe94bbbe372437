"""Dilated: a step writes every T-th position of a block, so that no two that it writes stand close together.

After the dilated schedule of Luxembourg, Permuter and Nachmani ("Plan for Speed", arXiv 2506.19037), but with
as many positions in each step: the offsets 0, T/2, T/4, 3T/4, ..., each far from those before it.

B rows, N block size.
"""

import torch
from torch import Tensor

from dadlm.decode.samplers.random import Random


class Dilated(Random):
    name = "dilated"
    summary = "every `steps`-th position: few that stand close together are written at once"
    options = ("steps",)

    def begin(self, seed: Tensor, number: Tensor, steps: Tensor, positions: int, most_steps: int) -> Tensor:
        steps = steps.clamp(min=1)[:, None]  # of a slot without a row: 0
        place = torch.arange(positions, device=seed.device)
        return turns(steps, most_steps).gather(1, (place % steps).clamp(max=most_steps - 1))


def turns(steps: Tensor, most: int) -> Tensor:
    """[B, most]: the step in which each offset below a row's number of steps [B, 1] is written: they come in
    the order of their bits read backwards."""
    offset, order = torch.arange(most, device=steps.device), torch.zeros(most, device=steps.device).long()
    for bit in range(most.bit_length()):
        order = 2 * order + (offset >> bit) % 2
    order = order.argsort()
    rank = (order < steps).cumsum(1) - 1
    return torch.zeros_like(rank).scatter(1, order.expand_as(rank), rank)

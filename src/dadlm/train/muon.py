"""Muon for the matrices of the layers, AdamW for everything else, as one optimiser.

Muon moves a matrix by its averaged gradient with all singular values made about one: rare directions count as
much as common ones. The step is scaled to the size of AdamW's, so that one learning rate serves both.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_MOMENTUM = 0.95
_ADAMW_SIZE = 0.2  # root mean square of AdamW's steps, in learning rates
_TURNS = 5
# A quintic that brings singular values in (0, 1] near one in few iterations (K. Jordan, Muon, 2024).
_A, _B, _C = 3.4445, -4.7750, 2.0315


class Muon(torch.optim.AdamW):
    """AdamW, except for groups with `matrices`, which keep only `exp_avg` for each weight. `stacked` says
    which weights are several matrices on top of each other, and how many rows each has."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        stacked: Mapping[Tensor, Sequence[int]] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(groups, **settings)
        self.stacked = stacked or {}
        self.matrices = {p for group in self.param_groups if group.get("matrices") for p in group["params"]}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        every = self.param_groups
        for group in every:
            if group.get("matrices"):
                self._move(group)
        self.param_groups = [group for group in every if not group.get("matrices")]
        try:
            return super().step(closure)
        finally:
            self.param_groups = every

    def _move(self, group: dict[str, Any]) -> None:
        """All matrices of one shape at once: a single one would not fill a device."""
        alike = defaultdict[torch.Size, list[tuple[Tensor, ...]]](list)
        for weight in group["params"]:
            if weight.grad is None:
                continue
            average = self.state[weight].setdefault("exp_avg", torch.zeros_like(weight))
            rows = list(self.stacked.get(weight, (len(weight),)))
            for parts in zip(*(x.split(rows) for x in (weight, weight.grad, average)), strict=True):
                alike[parts[0].shape].append(parts)
        spoilt = getattr(self, "found_inf", None)  # if set, nothing changes, as in fused AdamW
        for shape, found in alike.items():
            matrices, gradients, averages = zip(*found, strict=True)
            gradient = torch.stack(gradients)
            share = torch.full((), 1 - _MOMENTUM, device=gradient.device)
            decay = torch.full((), group["lr"] * group["weight_decay"], device=gradient.device)
            if spoilt is not None:
                gradient = gradient.masked_fill(spoilt > 0, 0.0)
                share, decay = (x.masked_fill(spoilt > 0, 0.0) for x in (share, decay))
            average = torch.stack(averages).lerp(gradient, share)
            moved = orthogonal(gradient.lerp(average, _MOMENTUM))
            if spoilt is not None:
                moved = moved.masked_fill(spoilt > 0, 0.0)
            size = group["lr"] * _ADAMW_SIZE * max(shape) ** 0.5
            for matrix, kept, new, step in zip(matrices, averages, average, moved, strict=True):
                kept.copy_(new)
                matrix.mul_(1 - decay).sub_(step, alpha=size)


def orthogonal(x: Tensor) -> Tensor:
    """Matrices [n, rows, columns] with their singular values brought near one, by Newton and Schulz."""
    turned = x.shape[1] > x.shape[2]
    y = x.mT if turned else x
    y = y / y.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    y = y.bfloat16() if x.is_cuda else y
    for _ in range(_TURNS):
        gram = y @ y.mT
        y = torch.baddbmm(y, torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C), y, beta=_A)
    return (y.mT if turned else y).to(x.dtype)

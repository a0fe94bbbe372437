"""Muon for the matrices of the layers, AdamW for all else, as one optimiser.

Muon moves a matrix by its averaged gradient with all singular values made about one: rare directions count as
much as common ones. Scaled to the size of AdamW's steps, so that one learning rate serves both.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

_MOMENTUM = 0.95
_ADAMW_SIZE = 0.2  # root mean square of AdamW's steps, in learning rates
_TURNS = 5
# A quintic that brings singular values in (0, 1] near one in so few turns (K. Jordan, Muon, 2024).
_A, _B, _C = 3.4445, -4.7750, 2.0315


class Muon(torch.optim.AdamW):
    """AdamW, but for groups with `matrices`; these keep one average, `exp_avg`, for each weight."""

    def __init__(self, groups: Iterable[dict[str, Any]], **settings: Any) -> None:
        super().__init__(groups, **settings)
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
        """Matrices of one shape together: a single one would not fill a device."""
        alike = defaultdict[torch.Size, list[nn.Parameter]](list)
        for matrix in group["params"]:
            if matrix.grad is not None:
                alike[matrix.shape].append(matrix)
        spoilt = getattr(self, "found_inf", None)  # as fused AdamW: then nothing changes
        for shape, matrices in alike.items():
            rows, columns = shape
            parts = 3 if rows == 3 * columns else 1  # queries, keys and values are three matrices
            gradient = torch.stack([matrix.grad for matrix in matrices])  # type: ignore[arg-type]
            weight = torch.full((), 1 - _MOMENTUM, device=gradient.device)
            decay = torch.full((), group["lr"] * group["weight_decay"], device=gradient.device)
            if spoilt is not None:
                gradient = gradient.masked_fill(spoilt > 0, 0.0)
                weight, decay = (x.masked_fill(spoilt > 0, 0.0) for x in (weight, decay))
            averages = [
                self.state[matrix].setdefault("exp_avg", torch.zeros_like(matrix)) for matrix in matrices
            ]
            average = torch.stack(averages).lerp(gradient, weight)
            for kept, new in zip(averages, average, strict=True):
                kept.copy_(new)
            moved = orthogonal(gradient.lerp(average, _MOMENTUM).view(-1, rows // parts, columns))
            if spoilt is not None:
                moved = moved.masked_fill(spoilt > 0, 0.0)
            size = group["lr"] * _ADAMW_SIZE * max(rows // parts, columns) ** 0.5
            for matrix, step in zip(matrices, moved.view(-1, rows, columns), strict=True):
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

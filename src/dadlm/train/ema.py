"""Moving average of the weights: what is validated and shipped."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


class Ema:
    def __init__(self, weights: Mapping[str, Tensor], limit: float) -> None:
        self.limit = limit
        self.average = {name: tensor.detach().clone() for name, tensor in weights.items()}

    def update(self, weights: Mapping[str, Tensor], step: int) -> None:
        """Take in the weights after update number `step`, counted from 0."""
        decay = min(self.limit, (1 + step) / (10 + step))
        current = [weights[name] for name in self.average]
        # One launch for all tensors; torch exports its foreach functions under private names only.
        torch._foreach_lerp_(list(self.average.values()), current, 1 - decay)  # pyright: ignore

    @contextmanager
    def in_place_of(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """Lend the averages to the model that owns `weights`."""
        self._swap(weights)
        try:
            yield
        finally:
            self._swap(weights)

    def _swap(self, weights: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, average in self.average.items():
                kept = weights[name].clone()
                weights[name].copy_(average)
                average.copy_(kept)

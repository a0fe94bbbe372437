"""What of a model is computed once for all passes of an engine, and where captured graphs look for it."""

import torch
from torch import Tensor

from dadlm.model import Model, eval_mode
from dadlm.model.successors import keep_successors


class Constants:
    """Of one engine; they are held, so that nothing else takes their place."""

    def __init__(self) -> None:
        self._are_kept = self._has_successors = False
        self._addresses: tuple[int, ...] = ()
        self._held: list[Tensor] = []

    def keep(self, model: Model) -> bool:
        """Compute them, until `release`; whether anything has moved that graphs have seen."""
        if not self._are_kept:
            _keep(model)
            self._are_kept = True
        return self._have_moved(model)

    @torch.inference_mode()
    def keep_successors(self, model: Model) -> bool:
        """The same for what rows with a shortlist need."""
        if self._has_successors:
            return False
        _keep(model)  # always with them: other kernels would round otherwise, and all seem new
        try:
            with eval_mode(model):
                keep_successors(model)
        finally:
            model.release_constants()
        self._has_successors = True
        return self._are_kept and self._have_moved(model)

    def release(self, model: Model) -> None:
        if self._are_kept:
            model.release_constants()
            self._are_kept = self._has_successors = False

    def _have_moved(self, model: Model) -> bool:
        """Since this was asked last. What is new is at the end, where no graph has looked yet."""
        self._held = model.kept_constants()
        tensors, before = (*model.parameters(), *self._held), self._addresses
        self._addresses = tuple(tensor.data_ptr() for tensor in tensors)
        return before != self._addresses[: len(before)]


def _keep(model: Model) -> None:
    with torch.autocast(model.device.type, enabled=False):
        model.keep_constants()

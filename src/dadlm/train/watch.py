"""Whether a step's loss and gradients are numbers, told without waiting for the device.

On CUDA the optimiser skips by itself an update that is none, and it is noticed a step later: what the device
says of a step is written to the CPU's memory when it is known, and read when the next is on its way. (The
average of the weights then takes in the unchanged ones once more.)
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class _Noted:
    bad: Tensor
    known: torch.cuda.Event
    loss: Tensor
    norm: Tensor


class Watch:
    """For CUDA only: elsewhere there is nothing to wait for."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._noted: _Noted | None = None

    def note(self, loss: Tensor, norm: Tensor) -> None:
        """Before the optimiser's step; `read` what was noted before first."""
        bad = (~torch.isfinite(loss + norm)).float()
        self._optimizer.found_inf = bad  # type: ignore[attr-defined]
        told, known = torch.empty((), pin_memory=True), torch.cuda.Event()
        told.copy_(bad, non_blocking=True)
        known.record()
        self._noted = _Noted(told, known, loss.clone(), norm)

    def read(self) -> tuple[float, float] | None:
        """Loss and gradient norm of the step noted last, if they spoilt it; each is told once."""
        noted, self._noted = self._noted, None
        if noted is None:
            return None
        noted.known.synchronize()
        return (float(noted.loss), float(noted.norm)) if bool(noted.bad) else None

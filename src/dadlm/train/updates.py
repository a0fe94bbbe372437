"""One optimiser step after another, of whatever kind of batches: gradients, update, average of the weights.

A loss or gradient that is no number stops the training before it spoils the weights.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from dadlm.errors import TrainingError
from dadlm.model.checkpoint import weights
from dadlm.train.gradients import Gradients
from dadlm.train.spread import own_part, whole_tensor
from dadlm.train.state import TrainState
from dadlm.train.watch import Watch


class Updates:
    """Advances a state. `save` writes it down and says where; `advice` is for whom it had to stop."""

    def __init__(
        self, state: TrainState, gradients: Gradients, out: Path, save: Callable[[], Path], advice: str
    ) -> None:
        self.state, self.gradients, self.out, self.save, self.advice = state, gradients, out, save, advice
        # The tensors themselves: they follow every update.
        self.weights = {name: own_part(tensor) for name, tensor in weights(state.model).items()}
        self.watch = Watch(state.optimizer)

    def make(self, report: bool) -> tuple[Tensor, Tensor]:
        """The loss before the update, in nats per token, and what the graph adds if that is to be reported;
        both still on the device."""
        state, train = self.state, self.gradients.train
        model, optimizer = state.model.train(), state.optimizer
        state.begin_step(train, self.gradients.ranks.rank)
        loss, gap = self.gradients.fill(state.step, state.noise, report)
        norm = whole_tensor(torch.nn.utils.clip_grad_norm_(model.parameters(), train.clip))
        self._watch(loss, norm)
        optimizer.step()
        state.ema.update(self.weights, state.step)
        state.step += 1
        return loss, gap

    def notice(self) -> None:
        """Stop if the update before this one was skipped."""
        if (bad := self.watch.read()) is not None:
            self.state.step -= 1
            self._stop(*bad)

    def _watch(self, loss: Tensor, norm: Tensor) -> None:
        """Both are those of the whole batch: all processes stop together."""
        if self.gradients.device.type == "cuda":
            self.notice()
            self.watch.note(loss, norm)
        elif not bool(torch.isfinite(loss + norm)):
            self._stop(float(loss), float(norm))

    def _stop(self, loss: float, norm: float) -> None:
        """The update that would spoil the weights is not made: what is saved is the last good state.

        Weights that an earlier update has spoilt already are not saved: the checkpoint before them stays.
        """
        spoilt = not all(bool(torch.isfinite(tensor).all()) for tensor in self.weights.values())
        folder = (self.out / "last").resolve() if self.gradients.ranks.any(spoilt) else self.save()
        where = f"the last good state is in {folder}" if folder.exists() else "no good state was saved yet"
        raise TrainingError(
            f"step {self.state.step + 1}: loss {loss}, gradient norm {norm}; {where}. {self.advice}"
        )

"""The training loop, on text (`trainer.py`) and on pairs (`finetune.py`). A step is a pure function of
(weights, seed, step): neither resuming nor splitting the batch changes anything (but for dropout's draws).
"""

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from dadlm.errors import ConfigError, TrainingError
from dadlm.model import Model, find_device
from dadlm.model.checkpoint import weights
from dadlm.threads import one_thread
from dadlm.train.batches import Batches
from dadlm.train.checkpoint import load_state, save_state
from dadlm.train.config import RunConfig
from dadlm.train.distributed import full_tensor, local_part, wrap_distributed
from dadlm.train.gradients import Gradients
from dadlm.train.handover import averaged_before, stream_before, take_over
from dadlm.train.log import Log
from dadlm.train.processes import ALONE, Ranks, stop_on_signal
from dadlm.train.state import Ema, NanWatch, TrainState, start_optimizer


@dataclass(frozen=True)
class Finished:
    """How a run ended."""

    folder: Path
    step: int
    interrupted: bool
    valid: float
    """The best validation: a loss, or ROUGE with a minus sign."""
    is_first: bool = True
    """Whether this is the first process of its run, which reports for all."""


class Loop(ABC):
    """Steps, logs, validates and saves; a subclass says on what data, how to validate, and when to stop."""

    name: str
    """What the progress bar shows."""
    advice: ClassVar[str]
    """What to do about a loss that is not finite."""
    logs_gap: bool = False
    """Whether what the graph adds is logged with the loss."""

    def __init__(
        self,
        run: RunConfig,
        model: Model,
        batches: Batches,
        *,
        data: list[str],
        metadata: dict[str, Any] | None = None,
        origin: str | None = None,
        quiet: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        """`data` are fingerprints of the rows; see `TrainState` for `metadata`. `origin` is the model whose
        training this continues: its stream of rows and masks and, within a family, the moments of its
        optimiser and its average."""
        train = run.train
        self.config, self.origin, self.out = run, origin, Path(run.out)
        start = stream_before(self.out, origin, train.batch_size)
        self.batches = batches = replace(batches, start=start)
        self.quiet, self.ranks = quiet, ranks
        self.device = find_device(train.device)
        on_cuda = self.device.type == "cuda"
        if on_cuda and self.ranks.group is not None:
            self.device = torch.device("cuda", self.ranks.local)
        self.bf16 = train.precision == "bf16" or (train.precision == "auto" and on_cuda)
        model.backbone.checkpointing = train.checkpointing
        if train.compile:
            model.backbone.compile_parts()
        scalars = frozenset(name for name, tensor in weights(model).items() if tensor.ndim == 0)
        wrapped = wrap_distributed(model, train, self.ranks, self.device, self.bf16)
        # The tensors themselves: they follow every update.
        self.weights = {name: local_part(tensor) for name, tensor in weights(model).items()}
        averaged = averaged_before(self.out, origin, model.config.family)
        ema, optimizer = Ema(self.weights, train.ema, averaged), start_optimizer(model, train)
        self.state = TrainState(model, ema, optimizer, run.noise, data=data, scalars=scalars, start=start)
        self.state.metadata |= metadata or {}
        self.gradients = Gradients(wrapped, model, batches, self.ranks, self.bf16)
        self.watch = NanWatch(optimizer)
        if (self.out / "last").exists():
            load_state(self.state, run, self.out / "last", self.ranks)
        elif origin is not None:
            take_over(self.state, origin, self.ranks)
        if self.ranks.any(self.ranks.broadcast([self.state.step]) != [self.state.step]):
            raise ConfigError(
                f"not all processes see the run in {self.out}: put it where all machines see it"
            )

    @abstractmethod
    def validate(self, log: Log) -> float:
        """Score the averaged weights and log it; the lower the value, the better."""

    def is_done(self) -> bool:
        return self.state.step >= self.config.train.steps

    def run(self) -> Finished:
        """Train until done or asked to stop; always ends with a checkpoint."""
        if not self.is_done():
            self._train()
        elif self.ranks.first and not self.quiet:
            print(f"{self.out} ended at step {self.state.step}: nothing to do")
        return Finished(
            self.out, self.state.step, not self.is_done(), self.state.best, is_first=self.ranks.first
        )

    def _train(self) -> None:
        state, train, ranks = self.state, self.config.train, self.ranks
        new_log = Log(self.out, self.name, train.steps, state.step, self.quiet, writes=ranks.first)
        on_cuda = self.device.type == "cuda"  # the host draws small numbers and launches
        with new_log as log, stop_on_signal(patient=ranks.group is not None) as stop, one_thread(on_cuda):
            if state.step:
                log.message(f"{self.out}: resuming at step {state.step}")
            elif self.origin is not None:
                self.validate(log)  # what later values are compared with
            saved_at, since, tokens = state.step, time.perf_counter(), 0
            while not self.is_done() and not ranks.any(stop.asked):
                tokens += self.batches.tokens_read(state.step)
                loss = self.step()
                every = (train.log_every, train.valid_every, train.save_every)
                logs, validates, saves = (train.is_due(state.step, steps) for steps in every)
                if logs or validates or saves:
                    self._check_last_step()  # a failed step is neither logged nor saved
                values = None
                if logs:
                    now = time.perf_counter()
                    values = {"loss": float(loss), "lr": train.lr_at(state.step - 1)}
                    values["tokens_per_second"] = tokens / (now - since)
                    since, tokens = now, 0
                    if self.logs_gap:
                        values["gap"] = float(self._gap)
                log.step(state.step, values)
                improved = False
                if validates:
                    value = self.validate(log)
                    improved, state.best = value < state.best, min(state.best, value)
                if improved or saves:
                    self.save(improved)
                    saved_at = state.step
            if state.step > saved_at:
                self._check_last_step()
                self.save(False)

    def step(self) -> Tensor:
        """One optimiser step; the loss is that before the update, in nats per token, still on the device."""
        state, train = self.state, self.config.train
        state.model.train()
        state.begin_step(train, self.ranks.rank)
        report = self.logs_gap and train.is_due(state.step + 1, train.log_every)
        loss, self._gap = self.gradients.fill(state.step, state.noise, report)
        norm = full_tensor(torch.nn.utils.clip_grad_norm_(state.model.parameters(), train.clip))
        # Both are of the whole batch: all processes stop together.
        if self.device.type == "cuda":
            self._check_last_step()
            self.watch.note(loss, norm)
        elif not bool(torch.isfinite(loss + norm)):
            self._stop(float(loss), float(norm))
        state.optimizer.step()
        state.ema.update(self.weights, state.step)
        state.step += 1
        return loss

    def save(self, is_best: bool) -> Path:
        return save_state(self.state, self.config, self.out, is_best, self.ranks)

    def _check_last_step(self) -> None:
        """Stop if the update before this one was skipped."""
        if (bad := self.watch.read()) is not None:
            self.state.step -= 1
            self._stop(*bad)

    def _stop(self, loss: float, norm: float) -> None:
        """The update that would spoil the weights is not made, and the last good state is saved. Weights that
        an earlier update has spoilt are not saved: the checkpoint before them stays."""
        spoilt = not all(bool(torch.isfinite(tensor).all()) for tensor in self.weights.values())
        folder = (self.out / "last").resolve() if self.ranks.any(spoilt) else self.save(False)
        where = f"the last good state is in {folder}" if folder.exists() else "no good state was saved yet"
        raise TrainingError(
            f"step {self.state.step + 1}: loss {loss}, gradient norm {norm}; {where}. {self.advice}"
        )

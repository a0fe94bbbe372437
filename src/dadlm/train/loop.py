"""The training loop of every family and stage.

A step is a pure function of (weights, seed, step): its rows and noise are counted, not drawn from a state,
dropout is seeded anew, and the loss is divided by the tokens of the whole batch. So stopping and resuming
changes nothing, nor does cutting the batch into parts or over processes (unless there is dropout).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from dadlm.errors import ConfigError
from dadlm.evaluate import RowScores, score_rows
from dadlm.model import Model, find_device
from dadlm.model.checkpoint import weights
from dadlm.model.compiled import compile_parts
from dadlm.noise import best_interval
from dadlm.threads import one_thread
from dadlm.tokens import Rows
from dadlm.train.batches import Batches
from dadlm.train.config import RunConfig
from dadlm.train.ema import Ema
from dadlm.train.gradients import Gradients
from dadlm.train.log import Log, Unheard
from dadlm.train.ranks import Ranks
from dadlm.train.spread import own_part, spread
from dadlm.train.start import begin_graph
from dadlm.train.state import TrainState, clipped, load_state, save_state, start_optimizer
from dadlm.train.stopping import stop_on_signal
from dadlm.train.updates import Updates

Probe = Callable[[Model], dict[str, float]]

_ADVICE = (
    "Look at the data of that step, or start another run from there (--init-from, --out) with a lower "
    "train.lr or clip"
)


@dataclass(frozen=True)
class Finished:
    """How a run ended."""

    folder: Path
    step: int
    interrupted: bool
    valid: float
    is_first: bool = True
    """Whether this process is the first of its run, which answers for all."""


class Trainer:
    """One stage on given rows; `train` builds it from text, the tour from a made-up language."""

    def __init__(
        self,
        run: RunConfig,
        model: Model,
        rows: Rows,
        valid_rows: Rows,
        *,
        quiet: bool = False,
        probe: Probe | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """`probe` measures something of its own at each validation, which is logged with it."""
        self.config = replace(run, model=model.config)
        self.out, self.quiet, self.probe = Path(run.out), quiet, probe
        self.rows, self.valid_rows, self.ranks = rows, valid_rows, ranks or Ranks()
        self.device = self.ranks.place(find_device(run.train.device))
        self.bf16 = run.train.in_bf16(self.device.type)
        begin_graph(run, model, rows, self.ranks)
        if run.train.compile:
            compile_parts(model)
        model.backbone.checkpointing = run.train.checkpointing
        numbers = frozenset(name for name, tensor in weights(model).items() if tensor.ndim == 0)
        self.whole = spread(model, run.train, self.ranks, self.device, self.bf16)
        ema = Ema({name: own_part(tensor) for name, tensor in weights(model).items()}, run.train.ema)
        self.state = TrainState(model, ema, start_optimizer(model, run), run.noise)
        self.state.numbers = numbers
        self.state.data = [rows.fingerprint(), valid_rows.fingerprint()]
        batches = Batches(self.config, rows)
        self.gradients = Gradients(self.whole, model, batches, self.ranks, self.bf16)
        self.updates = Updates(self.state, self.gradients, self.out, lambda: self._save(False), _ADVICE)
        if (self.out / "last").exists():
            load_state(self.state, self.config, self.out / "last", self.ranks)
        if self.ranks.any(self.ranks.agreed([self.state.step]) != [self.state.step]):
            raise ConfigError(
                f"not all processes see the run in {self.out}: put it where all machines see it"
            )

    def run(self) -> Finished:
        """Train to the last step, or until asked to stop; always ends with a checkpoint."""
        state, train, ranks = self.state, self.config.train, self.ranks
        name, started, saved_at = self.state.model.config.family, state.step, state.step
        if state.step >= train.steps:
            if ranks.first and not self.quiet:
                print(f"{self.out} is already at step {state.step} of {train.steps}: nothing to do")
            return Finished(self.out, state.step, False, state.best, ranks.first)
        new_log = Log(self.out, name, train.steps, started, self.quiet) if ranks.first else Unheard()
        on_cuda = self.device.type == "cuda"  # the host draws small numbers and launches
        with new_log as log, stop_on_signal(patient=ranks.group is not None) as stop, one_thread(on_cuda):
            if started:
                log.say(f"{self.out}: going on from step {started}")
            since, logged_at = time.perf_counter(), state.step
            while state.step < train.steps and not ranks.any(bool(stop)):
                loss = self.step()
                logs, validates, saves = (
                    train.is_due(state.step, every)
                    for every in (train.log_every, train.valid_every, train.save_every)
                )
                values = None
                if logs or validates or saves:
                    self.updates.notice()  # nothing of a spoilt step is shown or kept
                if logs:
                    now = time.perf_counter()
                    rate = self._tokens * (state.step - logged_at) / (now - since)
                    since, logged_at = now, state.step
                    values = {
                        "loss": float(loss),
                        "lr": train.lr_at(state.step - 1),
                        "tokens_per_second": rate,
                    }
                    if name == "dadlm":
                        values["gap"] = float(self._gap)
                log.step(state.step, values)
                improved = validates and self._validate(log)
                if improved or saves:
                    self._save(improved)
                    saved_at = state.step
            if state.step > saved_at:
                self.updates.notice()
                self._save(False)
        return Finished(self.out, state.step, state.step < train.steps, state.best, ranks.first)

    @property
    def _tokens(self) -> int:
        return self.config.train.batch_size * self.rows.context

    def step(self) -> Tensor:
        """One optimiser step; the loss is that before the update, in nats per token, still on the device."""
        train = self.config.train
        logged = train.is_due(self.state.step + 1, train.log_every)
        loss, self._gap = self.updates.make(report=logged)
        return loss

    def score(self) -> tuple[RowScores, dict[str, float]]:
        """Validation scores of the averaged weights, and what the probe measures."""
        train = self.config.train
        batch = len(self.gradients.parts[0])

        def work(model: Model) -> tuple[RowScores, dict[str, float]]:
            scores = score_rows(model, self.valid_rows, count=train.valid_rows, batch_size=batch)
            return scores, self.probe(model) if self.probe else {}

        with (
            self.state.ema.in_place_of(self.updates.weights),
            torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16),
            torch.no_grad(),
        ):
            return self.whole(work)

    def _validate(self, log: Log | Unheard) -> bool:
        """Score the averaged weights; adapt the noise interval if asked to. True if it is the best so far."""
        state = self.state
        scores, probed = self.score()
        means = [float(scores.reconstruction.mean()), float(scores.bound.mean()), scores.gap]
        value, bound, gap = self.ranks.agreed(means)
        values = {"valid_reconstruction": value, "valid_bound": bound, "valid_gap": gap}
        if self.state.model.config.family != "dadlm":
            values = {"valid_loss": value}
        if state.noise.clip_search and len(scores.time):
            found = best_interval(scores.time, scores.fraction, scores.block_loss)
            low, high = self.ranks.agreed(list(found))
            state.noise = clipped(state.noise, (low, high))
            values |= {"noise_low": low, "noise_high": high}
        log.validation(state.step, values | probed)
        improved = value < state.best
        state.best = min(state.best, value)
        return improved

    def _save(self, is_best: bool) -> Path:
        return save_state(self.state, self.config, self.out, is_best, self.ranks)

"""The training loop of every family and stage.

A step is a pure function of (weights, seed, step): its rows and noise are counted, not drawn from a state,
dropout is seeded anew, and the loss is divided by the tokens of the whole batch. So stopping and resuming
changes nothing, nor does splitting the batch (unless there is dropout).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from dadlm import counter
from dadlm.errors import CheckpointError, TrainingError
from dadlm.evaluate import RowScores, score_rows
from dadlm.model import Model, find_device
from dadlm.model.checkpoint import weights
from dadlm.model.compiled import compile_parts
from dadlm.nodes import Rooms, make_rooms
from dadlm.noise import Noise, best_interval, draw_noise
from dadlm.objective import losses
from dadlm.objective.factorised import cut
from dadlm.tokens import Rows, training_rows
from dadlm.train.config import RunConfig
from dadlm.train.data import load_rows, load_tokenizer
from dadlm.train.ema import Ema
from dadlm.train.graphs import StepGraphs
from dadlm.train.log import Log
from dadlm.train.start import fresh_model, model_from
from dadlm.train.state import TrainState, clipped, compare_runs, load_state, save_state, start_optimizer
from dadlm.train.stopping import stop_on_signal

Probe = Callable[[Model], dict[str, float]]


@dataclass(frozen=True)
class Finished:
    """How a run ended."""

    folder: Path
    step: int
    interrupted: bool
    valid: float


def train(run: RunConfig, *, quiet: bool = False) -> Finished:
    """Train one stage from text, or go on with it if its folder holds an unfinished run."""
    last = Path(run.out) / "last"
    if last.is_symlink() and not last.exists():
        raise CheckpointError(
            f"{last} points to a checkpoint that is gone; choose another --out or remove {run.out}"
        )
    if last.exists():
        compare_runs(run, last)
        model = model_from(last, run.model, run.train.seed)
    elif run.init_from is not None:
        model = model_from(run.init_from, run.model, run.train.seed)
        _check_tokenizer(run, model)
    else:
        model = fresh_model(run.model, load_tokenizer(run.data), run.train.seed)
    assert model.tokenizer is not None
    rows, valid_rows = load_rows(run.data, model.tokenizer, model.config.context)
    return Trainer(run, model, rows, valid_rows, quiet=quiet).run()


def _check_tokenizer(run: RunConfig, model: Model) -> None:
    """A model brings its tokenizer along; another one that was asked for by name cannot be had with it."""
    if not run.data.tokenizer.startswith("bpe:") and load_tokenizer(run.data) != model.tokenizer:
        raise CheckpointError(
            f"{run.init_from} has another tokenizer than {run.data.tokenizer}: leave data.tokenizer out"
        )


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
    ) -> None:
        """`probe` measures something of its own at each validation, which is logged with it."""
        self.config = replace(run, model=model.config)
        self.out, self.quiet, self.probe = Path(run.out), quiet, probe
        self.rows, self.valid_rows = rows, valid_rows
        self.device = find_device(run.train.device)
        model.to(self.device)
        if run.train.compile:
            compile_parts(model)
        ema = Ema(weights(model), run.train.ema)
        self.state = TrainState(model, ema, start_optimizer(model, run), run.noise)
        self.state.data = [rows.fingerprint(), valid_rows.fingerprint()]
        self._weights = weights(model)  # the tensors themselves: they follow every update
        self._watched: tuple[Tensor, torch.cuda.Event, Tensor, Tensor] | None = None
        model.backbone.checkpointing = run.train.checkpointing
        one_piece = self.device.type == "cuda" and run.train.accumulate == 1 and not run.train.checkpointing
        self.graphs = StepGraphs(model, self._replayed) if one_piece and run.train.graphs else None
        if (self.out / "last").exists():
            load_state(self.state, self.config, self.out / "last")

    def run(self) -> Finished:
        """Train to the last step, or until asked to stop; always ends with a checkpoint."""
        state, train = self.state, self.config.train
        name, started, saved_at = self.state.model.config.family, state.step, state.step
        if state.step >= train.steps:
            if not self.quiet:
                print(f"{self.out} is already at step {state.step} of {train.steps}: nothing to do")
            return Finished(self.out, state.step, False, state.best)
        with Log(self.out, name, train.steps, started, self.quiet) as log, stop_on_signal() as stop:
            if started:
                log.console.print(f"{self.out}: going on from step {started}")
            since, logged_at = time.perf_counter(), state.step
            while state.step < train.steps and not stop:
                loss = self.step()
                ends = state.step == train.steps
                validates = ends or state.step % train.valid_every == 0
                saves = ends or state.step % train.save_every == 0
                values = None
                if validates or saves or self._logs(state.step):
                    self._notice()  # nothing of a spoilt step is shown or kept
                if self._logs(state.step):
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
                    save_state(state, self.config, self.out, improved)
                    saved_at = state.step
            if state.step > saved_at:
                self._notice()
                save_state(state, self.config, self.out, False)
        return Finished(self.out, state.step, state.step < train.steps, state.best)

    @property
    def _tokens(self) -> int:
        return self.config.train.batch_size * self.rows.context

    def step(self) -> Tensor:
        """One optimiser step; the loss is that before the update, in nats per token, still on the device."""
        state, train = self.state, self.config.train
        model, optimizer = state.model.train(), state.optimizer
        torch.manual_seed(int(counter.hash_counters(train.seed, state.step, counter.DROPOUT)) & (2**62 - 1))
        for group in optimizer.param_groups:
            group["lr"] = train.lr_at(state.step) * group["scale"]
        chosen = training_rows(self.rows, state.step, train.batch_size, train.seed)
        full = None
        try:
            loss, self._gap = self._gradients(chosen)
        except torch.OutOfMemoryError as error:
            full = error.with_traceback(None)  # whose frames would hold on to the memory
        if full is not None:
            raise TrainingError(self._what_fits(chosen)) from full
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), train.clip)
        self._watch(loss, norm)
        optimizer.step()
        state.ema.update(self._weights, state.step)
        state.step += 1
        return loss

    def _gradients(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Fill the gradients from the chosen rows; the loss and what the graph adds."""
        train, step = self.config.train, self.state.step
        if self.graphs is not None and train.power_at(step) == 1.0:
            return self._replay(chosen)
        self.state.optimizer.zero_grad(set_to_none=True)
        loss, gap = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        for part in torch.arange(train.batch_size).chunk(train.accumulate):
            values = self._backward(*self._inputs(chosen, part), train.power_at(step), self._logs(step + 1))
            loss, gap = loss + values[0], gap + values[1]
        return loss, gap

    def _inputs(self, chosen: Tensor, part: Tensor) -> tuple[Tensor, Noise | None]:
        """Rows `part` of the chosen ones and their noise, on the device."""
        noise = self._noise(part)
        ids = self.rows.batch(chosen[part]).to(self.device)
        return ids, None if noise is None else noise.to(self.device)

    def _replay(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """The same in one piece, with the noise drawn on the CPU, where the shapes can be read off it."""
        assert self.graphs is not None
        ids, noise = self.rows.batch(chosen), self._noise(torch.arange(len(chosen)))
        inputs, rooms = (ids,), None
        if noise is not None:
            config = self.state.model.config
            learned = cut(ids, noise.masked, config.block, noise.blocks)[1].flatten(1)
            rooms = make_rooms(learned, config.block, config.nodes_per_mask, config.family == "dadlm")
            given = (noise.masked, noise.time, noise.weight, noise.blocks)
            inputs = (ids, *(x for x in given if x is not None))
        loss, gap = self.graphs(inputs, rooms)
        return loss, gap

    def _backward(
        self, ids: Tensor, noise: Noise | None, power: float, report: bool, rooms: Rooms | None = None
    ) -> tuple[Tensor, Tensor]:
        """Add the share of some rows to the gradients."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._bf16()):
            parts = losses(self.state.model, ids, noise, power, report, rooms)
        tokens = self.config.train.batch_size * (self.rows.context - 1)
        loss = parts.train.sum() / tokens
        loss.backward()
        return loss.detach(), (parts.bound - parts.reconstruction).sum() / tokens

    def _replayed(self, inputs: tuple[Tensor, ...], rooms: Rooms | None) -> tuple[Tensor, Tensor]:
        noise = None if rooms is None else Noise(*inputs[1:])
        return self._backward(inputs[0], noise, 1.0, True, rooms)

    def _watch(self, loss: Tensor, norm: Tensor) -> None:
        """Stop at a loss or gradient that is no number, before it spoils the weights.

        On CUDA the optimiser skips such an update by itself, and it is noticed a step later: what the device
        says of a step is written to the CPU's memory when it is known, and read when the next is on its way.
        (The average of the weights then takes in the unchanged ones once more.)
        """
        if self.device.type != "cuda":
            if not bool(torch.isfinite(loss + norm)):
                self._stop_at_nan(float(loss), float(norm))
            return
        self._notice()
        bad = (~torch.isfinite(loss + norm)).float()
        self.state.optimizer.found_inf = bad  # type: ignore[attr-defined]
        told, known = torch.empty((), pin_memory=True), torch.cuda.Event()
        told.copy_(bad, non_blocking=True)
        known.record()
        self._watched = (told, known, loss.clone(), norm)

    def _notice(self) -> None:
        """Stop if the update before this one was skipped."""
        if self._watched is None:
            return
        (told, known, loss, norm), self._watched = self._watched, None
        known.synchronize()
        if bool(told):
            self.state.step -= 1
            self._stop_at_nan(float(loss), float(norm))

    def _what_fits(self, chosen: Tensor) -> str:
        """Try smaller parts of the batch until one fits the device, and say how to ask for it."""
        train = self.config.train
        self.graphs = None
        for accumulate in (
            n for n in range(train.accumulate + 1, train.batch_size + 1) if not train.batch_size % n
        ):
            self.state.optimizer.zero_grad(set_to_none=True)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            part = torch.arange(train.batch_size // accumulate)
            try:
                self._backward(*self._inputs(chosen, part), 1.0, True)
            except torch.OutOfMemoryError:
                continue
            return (
                f"out of memory: {train.batch_size // train.accumulate} rows at once do not fit "
                f"{self.device}, {len(part)} do: pass --train.accumulate {accumulate}; results stay the same"
            )
        return f"out of memory: not even one row fits {self.device}; try --train.checkpointing True"

    def _logs(self, step: int) -> bool:
        """Whether the step that ends at this count is logged."""
        return step % self.config.train.log_every == 0 or step == self.config.train.steps

    def _noise(self, part: Tensor) -> Noise | None:
        """The noise of rows `part` of the batch, drawn on the CPU whatever the device."""
        model, train = self.state.model.config, self.config.train
        if model.family == "ar":
            return None
        return draw_noise(
            self.state.noise,
            seed=train.seed,
            step=self.state.step,
            rows=part,
            batch_rows=train.batch_size,
            length=self.rows.context,
            block_size=model.block,
            block_share=1.0 if model.family == "mdlm" else train.block_share,
        )

    def _bf16(self) -> bool:
        precision = self.config.train.precision
        return precision == "bf16" or (precision == "auto" and self.device.type == "cuda")

    def score(self) -> tuple[RowScores, dict[str, float]]:
        """Validation scores of the averaged weights, and what the probe measures."""
        state, train = self.state, self.config.train
        with (
            state.ema.in_place_of(weights(state.model)),
            torch.autocast(self.device.type, torch.bfloat16, enabled=self._bf16()),
        ):
            rows, batch = self.valid_rows, train.batch_size // train.accumulate
            scores = score_rows(state.model, rows, count=train.valid_rows, batch_size=batch)
            return scores, self.probe(state.model) if self.probe else {}

    def _validate(self, log: Log) -> bool:
        """Score the averaged weights; adapt the noise interval if asked to. True if it is the best so far."""
        state = self.state
        scores, probed = self.score()
        value = float(scores.reconstruction.mean())
        values = {
            "valid_reconstruction": value,
            "valid_bound": float(scores.bound.mean()),
            "valid_gap": scores.gap,
        }
        if self.state.model.config.family != "dadlm":
            values = {"valid_loss": value}
        if state.noise.clip_search and len(scores.time):
            interval = best_interval(scores.time, scores.fraction, scores.block_loss)
            state.noise = clipped(state.noise, interval)
            values |= {"noise_low": interval[0], "noise_high": interval[1]}
        log.validation(state.step, values | probed)
        improved = value < state.best
        state.best = min(state.best, value)
        return improved

    def _stop_at_nan(self, loss: float, norm: float) -> None:
        """The update that would spoil the weights is not made: what is saved is the last good state.

        Weights that an earlier update has spoilt already are not saved: the checkpoint before them stays.
        """
        good = all(bool(torch.isfinite(tensor).all()) for tensor in weights(self.state.model).values())
        folder = (
            save_state(self.state, self.config, self.out, False) if good else (self.out / "last").resolve()
        )
        where = f"the last good state is in {folder}" if folder.exists() else "no good state was saved yet"
        raise TrainingError(
            f"step {self.state.step + 1}: loss {loss}, gradient norm {norm}; {where}. Look at the data of "
            f"that step, or start another run from there (--init-from, --out) with a lower train.lr or clip"
        )

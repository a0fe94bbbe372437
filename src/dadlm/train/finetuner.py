"""The loop of fine-tuning: the summary of a pair is learned, block by block; ROUGE decides which is best.

Like `loop.py`'s on other rows: their lengths differ, only a part of each is learned, and what ends the
training early is how well the model summarises. A step is a pure function of (weights, seed, step) here too,
so stopping and resuming changes nothing.
"""

import time
from pathlib import Path

import torch
from torch import Tensor

from dadlm.errors import TrainingError
from dadlm.evaluate.documents import Documents
from dadlm.evaluate.scores import evaluating
from dadlm.evaluate.summarisation import lengths, summarisation
from dadlm.model import Model, find_device
from dadlm.model.checkpoint import weights
from dadlm.model.compiled import compile_parts
from dadlm.noise import draw_noise
from dadlm.objective import losses
from dadlm.train.config import DataConfig, RunConfig
from dadlm.train.ema import Ema
from dadlm.train.finetune_config import FinetuneConfig
from dadlm.train.log import Log
from dadlm.train.pair_rows import Batch, Encoded, PairRows, encode_pairs
from dadlm.train.state import TrainState, load_state, save_state, start_optimizer
from dadlm.train.stopping import stop_on_signal


class Finetuner:
    """One fine-tuning of given pairs; `finetune` reads them from files."""

    def __init__(
        self, config: FinetuneConfig, model: Model, encoded: Encoded, valid: Documents, *, quiet: bool = False
    ) -> None:
        self.config, self.out, self.quiet = config, Path(config.out), quiet
        self.device = find_device(config.train.device)
        model.to(self.device)
        if config.train.compile:
            compile_parts(model)
        model.backbone.checkpointing = config.train.checkpointing
        self.sizes = lengths(model, config.document_tokens, config.summary_tokens)
        self.rows = PairRows(encoded.rows, model.config, config.train.batch_size)
        valid_rows = encode_pairs(model, valid, *self.sizes).rows[: config.train.valid_rows]
        self.valid_rows = PairRows(valid_rows, model.config, config.train.batch_size)
        self.shown = _spread(valid, config.rouge_pairs)
        # What is saved says where the weights come from; the data are known by their fingerprints.
        names = DataConfig(train=" ".join(config.data), valid=" ".join(config.valid))
        self.run_config = RunConfig(
            model=model.config,
            data=names,
            noise=config.noise,
            train=config.train,
            out=config.out,
            init_from=config.model,
        )
        ema = Ema(weights(model), config.train.ema)
        self.state = TrainState(model, ema, start_optimizer(model, self.run_config), config.noise)
        self.state.data = [self.rows.fingerprint(), self.shown.fingerprint]
        self._weights = weights(model)  # the tensors themselves: they follow every update
        if (self.out / "last").exists():
            load_state(self.state, self.run_config, self.out / "last")

    def run(self) -> tuple[int, bool]:
        """Train until the last step, until ROUGE rises no more, or until asked to stop: the step it ended at,
        and whether somebody asked. Always ends with a checkpoint."""
        state, train = self.state, self.config.train
        name, saved_at = f"fine-tuning {state.model.config.family}", state.step
        if self._is_done():
            if not self.quiet:
                print(f"{self.out} ended at step {state.step}: nothing to do")
            return state.step, False
        with Log(self.out, name, train.steps, state.step, self.quiet) as log, stop_on_signal() as stop:
            since, tokens = time.perf_counter(), 0
            while not self._is_done() and not stop:
                loss, seen = self.step()
                tokens += seen
                ends = state.step == train.steps
                values = None
                if ends or state.step % train.log_every == 0:
                    now = time.perf_counter()
                    rate, since, tokens = tokens / (now - since), now, 0
                    values = {"loss": loss, "lr": train.lr_at(state.step - 1), "tokens_per_second": rate}
                log.step(state.step, values)
                improved = (ends or state.step % train.valid_every == 0) and self._validate(log)
                if improved or ends or state.step % train.save_every == 0:
                    save_state(state, self.run_config, self.out, improved)
                    saved_at = state.step
            if state.step > saved_at:
                save_state(state, self.run_config, self.out, False)
        return state.step, not self._is_done()

    def step(self) -> tuple[float, int]:
        """One optimiser step: the loss before it, in nats per learned token, and the tokens it read."""
        state, train = self.state, self.config.train
        model, optimizer = state.model.train(), state.optimizer
        state.begin_step(train)
        batch = self.rows.batch(state.step, train.seed)
        learned = batch.learned.sum()
        optimizer.zero_grad(set_to_none=True)
        loss = torch.zeros((), device=self.device)
        try:
            for part in torch.arange(train.batch_size).chunk(train.accumulate):
                share = self._nll(batch, part, state.step) / learned
                share.backward()
                loss = loss + share.detach()
        except torch.OutOfMemoryError as error:
            raise TrainingError(
                f"out of memory: {train.batch_size // train.accumulate} rows at once do not fit "
                f"{self.device}; pass --train.accumulate {2 * train.accumulate}, or more: same results"
            ) from error
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), train.clip)
        if not bool(torch.isfinite(loss + norm)):
            self._stop_at_nan(float(loss), float(norm))
        optimizer.step()
        state.ema.update(self._weights, state.step)
        state.step += 1
        return float(loss), batch.ids.numel()

    def _nll(self, batch: Batch, rows: Tensor, step: int, seed: int | None = None) -> Tensor:
        """The weighted loss of rows of a batch, summed over what is learned."""
        model, train, part = self.state.model, self.config.train, batch.part(rows)
        noise = None
        if model.config.family != "ar":
            length = batch.ids.shape[1]
            noise = draw_noise(
                self.config.noise,
                seed=train.seed if seed is None else seed,
                step=step,
                rows=rows,
                batch_rows=len(batch.ids),
                length=length,
                block_size=length if model.config.family == "mdlm" else model.config.block,
                maskable=part.learned,
                most_blocks=batch.most_blocks,
            ).to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=train.in_bf16(self.device.type)):
            ids, learned = part.ids.to(self.device), part.learned.to(self.device)
            return losses(model, ids, noise, report=False, learned=learned).train.sum()

    def _validate(self, log: Log) -> bool:
        """ROUGE of the averaged weights on some pairs, and their loss on more. True if it is the best."""
        state = self.state
        with state.ema.in_place_of(weights(state.model)):
            loss = self._valid_loss()
            written = summarisation(
                state.model,
                self.shown,
                document_tokens=self.sizes[0],
                summary_tokens=self.sizes[1],
                batch_size=self.config.train.batch_size,
            )
        rouge = written["average"]["mean"]
        log.validation(state.step, {"valid_loss": loss, "valid_rouge": rouge, "valid_tpf": written["tpf"]})
        improved = -rouge < state.best
        state.best = min(state.best, -rouge)
        return improved

    def _valid_loss(self) -> float:
        """In nats per learned token, under the same noise every time."""
        total, learned = 0.0, 0
        with evaluating(self.state.model):
            for index, batch in enumerate(self.valid_rows.in_order()):
                total += float(self._nll(batch, torch.arange(len(batch.ids)), index, seed=0))
                learned += int(batch.learned.sum())
        return total / learned

    def _is_done(self) -> bool:
        """The last step, or `patience` validations since the best: which one that was, its link tells."""
        step, train, best = self.state.step, self.config.train, self.out / "best"
        if step >= train.steps:
            return True
        if not self.config.patience or not best.exists():
            return False
        best_step = int(best.resolve().name.removeprefix("step-"))
        return step // train.valid_every - best_step // train.valid_every >= self.config.patience

    def _stop_at_nan(self, loss: float, norm: float) -> None:
        """The update that would spoil the weights is not made; spoilt weights are not saved."""
        good = all(bool(torch.isfinite(tensor).all()) for tensor in weights(self.state.model).values())
        last = self.out / "last"
        folder = save_state(self.state, self.run_config, self.out, False) if good else last.resolve()
        where = f"the last good state is in {folder}" if folder.exists() else "no good state was saved yet"
        raise TrainingError(
            f"step {self.state.step + 1}: loss {loss}, gradient norm {norm}; {where}. "
            "Start another run with a lower --train.lr"
        )


def _spread(documents: Documents, count: int) -> Documents:
    """So many pairs, evenly from all over: files of different kinds follow one another."""
    every = max(1, len(documents.pairs) // count)
    return Documents(pairs=documents.pairs[::every][:count], source=documents.source)

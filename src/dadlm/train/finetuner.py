"""The loop of fine-tuning: the summary of a pair is learned, block by block; ROUGE decides which is best.

Like `loop.py`'s on other rows: their lengths differ, only a part of each is learned, and what ends the
training early is how well the model summarises. A step is a pure function of (weights, seed, step) here too,
so stopping and resuming changes nothing.
"""

import time
from pathlib import Path

import torch
from torch import Tensor

from dadlm.evaluate.documents import Documents
from dadlm.evaluate.scores import eval_mode
from dadlm.evaluate.summarisation import lengths, summarisation
from dadlm.model import Model, find_device
from dadlm.model.checkpoint import weights
from dadlm.model.compiled import compile_parts
from dadlm.objective import losses
from dadlm.threads import one_thread
from dadlm.train.batches import PairBatches
from dadlm.train.config import DataConfig, RunConfig
from dadlm.train.ema import Ema
from dadlm.train.finetune_config import FinetuneConfig
from dadlm.train.gradients import Gradients
from dadlm.train.log import Log
from dadlm.train.pair_rows import Encoded, PairRows, encode_pairs
from dadlm.train.progress import read_progress
from dadlm.train.ranks import Ranks
from dadlm.train.spread import spread
from dadlm.train.state import TrainState, load_state, save_state, start_optimizer
from dadlm.train.stopping import stop_on_signal
from dadlm.train.updates import Updates

_ADVICE = "Start another run with a lower --train.lr"


class Finetuner:
    """One fine-tuning of given pairs; `finetune` reads them from files."""

    def __init__(
        self, config: FinetuneConfig, model: Model, encoded: Encoded, valid: Documents, *, quiet: bool = False
    ) -> None:
        self.config, self.out, self.quiet = config, Path(config.out), quiet
        self.device = find_device(config.train.device)
        self.bf16 = config.train.in_bf16(self.device.type)
        if config.train.compile:
            compile_parts(model)
        model.backbone.checkpointing = config.train.checkpointing
        whole = spread(model, config.train, Ranks(), self.device, self.bf16)
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
        self.state.facts = {
            "document_tokens": self.sizes[0],
            "summary_tokens": self.sizes[1],
            "rouge_pairs": config.rouge_pairs,
        }
        self.batches = PairBatches(self.run_config, self.rows)
        self.gradients = Gradients(whole, model, self.batches, Ranks(), self.bf16)
        self.updates = Updates(self.state, self.gradients, self.out, lambda: self._save(False), _ADVICE)
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
        on_cuda = self.device.type == "cuda"  # the host draws small numbers and launches
        new_log = Log(self.out, name, train.steps, state.step, self.quiet)
        with new_log as log, stop_on_signal() as stop, one_thread(on_cuda):
            since, tokens = time.perf_counter(), 0
            while not self._is_done() and not stop:
                loss, seen = self.step()
                tokens += seen
                logs, validates, saves = (
                    train.is_due(state.step, every)
                    for every in (train.log_every, train.valid_every, train.save_every)
                )
                values = None
                if logs or validates or saves:
                    self.updates.notice()  # nothing of a spoilt step is shown or kept
                if logs:
                    now = time.perf_counter()
                    rate, since, tokens = tokens / (now - since), now, 0
                    lr = train.lr_at(state.step - 1)
                    values = {"loss": float(loss), "lr": lr, "tokens_per_second": rate}
                log.step(state.step, values)
                improved = validates and self._validate(log)
                if improved or saves:
                    self._save(improved)
                    saved_at = state.step
            if state.step > saved_at:
                self.updates.notice()
                self._save(False)
        return state.step, not self._is_done()

    def step(self) -> tuple[Tensor, int]:
        """One optimiser step: the loss before it, in nats per learned token and still on the device, and the
        tokens it read."""
        step = self.state.step
        loss, _ = self.updates.make(report=False)
        return loss, self.rows.batch(step, self.config.train.seed).ids.numel()

    def _validate(self, log: Log) -> bool:
        """ROUGE of the averaged weights on some pairs, and their loss on more. True if it is the best."""
        state = self.state
        with state.ema.in_place_of(self.updates.weights):
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
        model, total, learned = self.state.model, 0.0, 0
        with eval_mode(model), torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            for index, batch in enumerate(self.valid_rows.in_order()):
                everyone = torch.arange(len(batch.ids))
                noise = self.batches.noise_of(batch, self.config.noise, index, everyone, seed=0)
                noise = None if noise is None else noise.to(self.device)
                ids, counts = batch.ids.to(self.device), batch.learned.to(self.device)
                total += float(losses(model, ids, noise, report=False, learned=counts).train.sum())
                learned += int(batch.learned.sum())
        return total / learned

    def _save(self, is_best: bool) -> Path:
        return save_state(self.state, self.run_config, self.out, is_best)

    def _is_done(self) -> bool:
        """The last step, or `patience` validations since the best: which one that was, its link tells."""
        step, train, best = self.state.step, self.config.train, self.best_step
        if step >= train.steps:
            return True
        if not self.config.patience or best is None:
            return False
        return step // train.valid_every - best // train.valid_every >= self.config.patience

    @property
    def best_step(self) -> int | None:
        """Of the checkpoint with the best ROUGE so far."""
        best = self.out / "best"
        return read_progress(best)["step"] if best.exists() else None


def _spread(documents: Documents, count: int) -> Documents:
    """So many pairs, evenly from all over: files of different kinds follow one another."""
    total = len(documents.pairs)
    count = min(count, total)
    pairs = tuple(documents.pairs[place * total // count] for place in range(count))
    return Documents(pairs=pairs, source=documents.source)

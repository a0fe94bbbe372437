"""Training on text: find model and rows, then train. Under torchrun, one process of several."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from dadlm.errors import CheckpointError
from dadlm.evaluate import RowScores, score_rows
from dadlm.model import Model
from dadlm.noise import best_interval
from dadlm.tokens import Rows
from dadlm.train.batches import Batches
from dadlm.train.checkpoint import compare_runs
from dadlm.train.config import RunConfig
from dadlm.train.data import load_rows, load_tokenizer
from dadlm.train.edges import is_fresh, start_edges
from dadlm.train.log import Log
from dadlm.train.loop import Finished, Loop
from dadlm.train.origin import fresh_model, model_from, warn_of_other_text
from dadlm.train.processes import ALONE, Ranks, alone_in, joined

Probe = Callable[[Model], dict[str, float]]


class Trainer(Loop):
    """One stage on given rows; `train` builds it from text, the tour from a made-up language."""

    advice = (
        "Look at the data of that step, or start another run from there (--init-from, --out) with a lower "
        "train.lr or clip"
    )

    def __init__(
        self,
        run: RunConfig,
        model: Model,
        rows: Rows,
        valid_rows: Rows,
        *,
        quiet: bool = False,
        probe: Probe | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """`probe` measures something more at each validation, which is logged with it."""
        self.name, self.valid_rows, self.probe = model.config.family, valid_rows, probe
        self.logs_gap = model.graph is not None
        run = replace(run, model=model.config)
        data = [rows.fingerprint(), valid_rows.fingerprint()]
        super().__init__(
            run, model, Batches(run, rows), data=data, origin=run.init_from, quiet=quiet, ranks=ranks
        )

    def score(self) -> tuple[RowScores, dict[str, float]]:
        """Validation scores of the averaged weights, and what the probe measures."""
        model, count, batch = self.state.model, self.config.train.valid_rows, len(self.gradients.parts[0])
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)
        with self.state.ema.in_place_of(self.weights), autocast, torch.no_grad():
            scores = score_rows(model, self.valid_rows, count=count, batch_size=batch)
            return scores, self.probe(model) if self.probe else {}

    def validate(self, log: Log) -> float:
        """Also adapts the noise interval if asked to."""
        state = self.state
        scores, probed = self.score()
        means = [float(scores.reconstruction.mean()), float(scores.bound.mean()), scores.gap]
        means.append(float(scores.graph_gap.mean()))
        value, bound, gap, graph_gap = self.ranks.broadcast(means)
        values, has_edges = {"valid_loss": value}, state.model.head.edge is not None
        if self.logs_gap or has_edges:
            values = {"valid_reconstruction": value, "valid_bound": bound, "valid_gap": gap}
        if self.logs_gap and has_edges:  # without edges the two are the same
            values["valid_graph_gap"] = graph_gap
        if len(scores.ar_nll):
            [values["valid_ar_nll"]] = self.ranks.broadcast([float(scores.ar_nll.mean())])
        if state.noise.clip_search and len(scores.time):
            found = best_interval(scores.time, scores.fraction, scores.block_loss)
            low, high = self.ranks.broadcast(list(found))
            state.noise = replace(state.noise, low=low, high=high)
            values |= {"noise_low": low, "noise_high": high}
        log.validation(state.step, values | probed)
        return value


def train(run: RunConfig, *, quiet: bool = False) -> Finished:
    """Train one stage from text, or resume it if its folder holds an unfinished run."""
    with joined(run.train) as ranks:
        return train_stage(run, ranks, quiet=quiet)


def train_stage(run: RunConfig, ranks: Ranks, *, quiet: bool = False) -> Finished:
    """`train`, for processes that have joined already."""
    with ranks.in_turn():  # the first process of a machine prepares the text for the others
        model = _find_model(run)
        assert model.tokenizer is not None
        rows, valid_rows = load_rows(run.data, model.tokenizer, model.config.context)
        if run.train.edge_tokens and is_fresh(model):
            start_edges(model, rows, run.train.edge_tokens, run.train.seed, quiet)
    if ranks.first and not (Path(run.out) / "last").exists():
        warn_of_other_text(run, rows)
    with alone_in(Path(run.out), ranks):
        return Trainer(run, model, rows, valid_rows, quiet=quiet, ranks=ranks).run()


def _find_model(run: RunConfig) -> Model:
    """The run's own model if it was begun, that of the stage before, or a fresh one."""
    last = Path(run.out) / "last"
    if last.is_symlink() and not last.exists():
        raise CheckpointError(
            f"{last} points to a checkpoint that is gone; choose another --out or remove {run.out}"
        )
    if last.exists():
        compare_runs(run, last)
        return model_from(last, run.model, run.train.seed)
    if run.init_from is None:
        return fresh_model(run.model, load_tokenizer(run.data), run.train.seed)
    model = model_from(run.init_from, run.model, run.train.seed)
    # A model brings its tokenizer along; another one that was asked for by name cannot be had with it.
    if not run.data.tokenizer.startswith("bpe:") and load_tokenizer(run.data) != model.tokenizer:
        raise CheckpointError(
            f"{run.init_from} has another tokenizer than {run.data.tokenizer}: leave data.tokenizer out"
        )
    return model

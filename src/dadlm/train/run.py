"""A run from its settings: find model and rows, then train. Under torchrun, one process of several."""

from pathlib import Path

from dadlm.errors import CheckpointError
from dadlm.model import Model
from dadlm.train.alone import alone_in
from dadlm.train.config import RunConfig
from dadlm.train.data import load_rows, load_tokenizer
from dadlm.train.loop import Finished, Trainer
from dadlm.train.progress import compare_runs
from dadlm.train.ranks import joined
from dadlm.train.start import fresh_model, model_from


def train(run: RunConfig, *, quiet: bool = False) -> Finished:
    """Train one stage from text, or go on with it if its folder holds an unfinished run."""
    with joined(run.train) as ranks:
        with ranks.in_turn():  # the first of a machine prepares the text, the others find it prepared
            model = _find_model(run)
            assert model.tokenizer is not None
            rows, valid_rows = load_rows(run.data, model.tokenizer, model.config.context)
        with alone_in(Path(run.out), ranks):
            return Trainer(run, model, rows, valid_rows, quiet=quiet, ranks=ranks).run()


def _find_model(run: RunConfig) -> Model:
    """Of the run itself if it was begun, of the stage before, or a fresh one."""
    last = Path(run.out) / "last"
    if last.is_symlink() and not last.exists():
        raise CheckpointError(
            f"{last} points to a checkpoint that is gone; choose another --out or remove {run.out}"
        )
    if last.exists():
        compare_runs(run, last)
        return model_from(last, run.model, run.train.seed)
    if run.init_from is not None:
        model = model_from(run.init_from, run.model, run.train.seed)
        _check_tokenizer(run, model)
        return model
    return fresh_model(run.model, load_tokenizer(run.data), run.train.seed)


def _check_tokenizer(run: RunConfig, model: Model) -> None:
    """A model brings its tokenizer along; another one that was asked for by name cannot be had with it."""
    if not run.data.tokenizer.startswith("bpe:") and load_tokenizer(run.data) != model.tokenizer:
        raise CheckpointError(
            f"{run.init_from} has another tokenizer than {run.data.tokenizer}: leave data.tokenizer out"
        )

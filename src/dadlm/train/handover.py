"""What a stage takes over from a model besides its weights: the optimiser's moments, the moving average, and
the position in its stream of rows and masks. All are in `training/` of the model's folder, as in a checkpoint
or in a compact form.
"""

from pathlib import Path

import torch

from dadlm.errors import CheckpointError
from dadlm.model import Model, load
from dadlm.model.checkpoint import locate, read_config, weights, write_model
from dadlm.model.config import Family
from dadlm.model.files import read_json, save_tensors, whole_folder, write_json
from dadlm.train.checkpoint import MANY_STEPS, moments_of, read_progress, read_rows
from dadlm.train.distributed import COMPACT, TensorFiles, local_part
from dadlm.train.processes import ALONE, Ranks
from dadlm.train.state import Stream, TrainState

_MOMENTS = ("step.", "exp_avg.", "exp_avg_sq.")  # how the names of their tensors begin


def stream_before(out: Path, origin: str | Path | None, batch_size: int) -> Stream:
    """Where the stream stood before a run's first step: as its own checkpoint says, or the model it starts
    from; else it is new."""
    if (out / "last").exists():
        progress = read_progress(out / "last")
        return progress["stream"].after(-progress["step"], batch_size)
    folder = None if origin is None else training_of(origin)
    return Stream() if folder is None else read_progress(folder.parent)["stream"]


def averaged_before(out: Path, origin: str | Path | None, family: Family) -> int:
    """How many steps were averaged before a run's first one. An average goes on within a family; another
    family has another task to learn, and its first weights soon are the worst part of the average."""
    if (out / "last").exists():
        return read_progress(out / "last")["averaged"]
    if origin is None or read_config(locate(origin)).family != family:
        return 0
    folder = training_of(origin)
    if folder is None:
        return MANY_STEPS  # the number is not known
    progress = read_progress(folder.parent)
    return progress["averaged"] + progress["step"]


def training_of(origin: str | Path) -> Path | None:
    """The folder with the state of a model's training; None if there is none, as for the models that ship."""
    folder = locate(origin) / "training"
    return folder if (folder / "state.json").is_file() else None


def take_over(state: TrainState, origin: str | Path, ranks: Ranks = ALONE) -> None:
    """Continue as the run would have that the weights come from, for weights of the same name: with the
    optimiser's moments and the weights themselves, since a model's file holds their average. Another family
    has another task: there the average is the better start, and the moments would mislead."""
    folder = training_of(origin)
    if folder is None or read_config(folder.parent).family != state.model.config.family:
        return
    whole = weights(state.model)
    with TensorFiles(folder) as files, torch.no_grad():
        names = files.names
        for name, weight in whole.items():
            if f"weight.{name}" in names:  # a compact folder has none
                read_rows(files, f"weight.{name}", local_part(weight), weight, ranks)
        for name, parameter in state.model.named_parameters():
            if not parameter.requires_grad:
                continue
            moments = moments_of(state.optimizer, parameter)
            if not names.issuperset(f"{kind}.{name}" for kind in moments):
                continue  # another optimiser kept other moments
            for kind, moment in moments.items():
                part = local_part(moment)
                read_rows(files, f"{kind}.{name}", part, part if kind == "step" else parameter, ranks)


def save_compact(run: str | Path, out: str | Path) -> Model:
    """Save a run's best model as a folder that a later stage can start from as from the run itself, with the
    moments in bf16, which take as many bytes as the weights."""
    model, origin = load(run), training_of(run)
    if origin is None:
        raise CheckpointError(f"{run} is no training run, nor has it an optimiser's moments: name a run")
    with whole_folder(Path(out)) as folder:
        write_model(folder, model)
        (folder / "training").mkdir()
        write_json(folder / "training" / "state.json", read_json(origin / "state.json", "a training state"))
        with TensorFiles(origin) as files:
            small = dict[str, torch.Tensor]()
            for name in filter(lambda name: name.startswith(_MOMENTS), files.names):
                moment = files.whole(name)
                small[name] = moment.bfloat16() if moment.ndim else moment  # the number of steps stays exact
        save_tensors(small, folder / "training" / COMPACT)
    return model

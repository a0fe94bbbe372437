"""The model a stage starts with: a fresh one, or one with the weights and the shape of another."""

import math
import warnings
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from dadlm.errors import CheckpointError
from dadlm.model import Model, ModelConfig, load
from dadlm.model.checkpoint import locate, read_config, set_weights, weights
from dadlm.tokens import Rows, Tokenizer
from dadlm.train.checkpoint import read_progress
from dadlm.train.config import RunConfig
from dadlm.train.handover import training_of

# Which family may start from which: the stages of the paper, AR in place of MDLM, and each from itself.
_BLOCKS = ("ar", "mdlm", "bd3lm")
STAGES = {"ar": ("ar",), "mdlm": ("mdlm",), "bd3lm": _BLOCKS, "dadlm": (*_BLOCKS, "dadlm")}
_NEW = ("graph.", "head.offset", "head.edge.")  # what a stage adds starts fresh
# Where these differ the shapes may still fit, but the weights would mean something else.
_MEANING = ("architecture", "layers", "width", "heads", "kv_heads", "head_width", "rope_theta", "norm_eps")
_BACKBONE = (*_MEANING, "mlp_width", "tie_embedding", "lora", "vocab_size", "eot_id", "context")
_EDGE = ("edge", "edge_rank", "edge_second_rank")
_GRAPH = ("candidates", "expand_at", "transition", "track_bias", "candidate_scale", "candidate_offset")


def fresh_model(config: ModelConfig, tokenizer: Tokenizer, seed: int) -> Model:
    """A model with random weights for a tokenizer."""
    torch.manual_seed(seed)
    config = replace(config, vocab_size=tokenizer.vocab_size + 1, eot_id=tokenizer.eot_id)
    return Model(config, tokenizer)


def shape_from(own: ModelConfig, origin: ModelConfig) -> ModelConfig:
    """The settings of a stage that starts from a model: the shape is that model's; what it does not have
    (blocks, a graph) is the stage's own, with candidates that enter at the same fraction of the layers."""
    names = set(_BACKBONE)
    if origin.family in ("bd3lm", "dadlm"):
        names = {field.name for field in fields(ModelConfig)} - {"family", "dropout"}
        names -= set(_EDGE) if origin.edge == "none" else set()
        names -= set(_GRAPH) if origin.family == "bd3lm" else set()
    taken: dict[str, Any] = {name: getattr(origin, name) for name in names}
    taken.setdefault("expand_at", own.expand_at * origin.layers // own.layers)
    return replace(own, **taken)


def begun_from(origin: str | Path, out: str | Path) -> ModelConfig:
    """The shape of a stage in `out` that starts from a model: the stage's own if it was begun, since the
    model may be gone by then."""
    last = Path(out) / "last"
    return read_config(last if last.exists() else locate(origin))


def model_from(origin: str | Path, config: ModelConfig, seed: int) -> Model:
    """A model of `config` with the weights of `origin`; tokenizer and vocabulary come from there too."""
    earlier = load(origin)
    family = earlier.config.family
    if family not in STAGES[config.family]:
        allowed = " or ".join(STAGES[config.family])
        raise CheckpointError(
            f"{origin} is a model of family {family}; {config.family} can start from {allowed}. To train on "
            f"with this one: dadlm train small-{family} --init-from {origin}"
        )
    if earlier.config.is_both and not config.is_both:
        raise CheckpointError(
            f"{origin} is also an AR model, and this one would not be: pass --model.causal-context"
        )
    if earlier.tokenizer is None:
        raise CheckpointError(f"{origin} has no tokenizer.json: its text cannot be continued")
    _compare(origin, earlier.config, config)
    model = fresh_model(config, earlier.tokenizer, seed)
    new = {name: tensor for name, tensor in weights(model).items() if name.startswith(_NEW)}
    set_weights(model, new | weights(earlier), origin)
    return model


def _compare(origin: str | Path, theirs: ModelConfig, own: ModelConfig) -> None:
    """Refuse settings that do not fit the weights, and say which to leave out."""
    names = (*_MEANING, "candidates", "transition") if theirs.family == "dadlm" else _MEANING
    if theirs.edge != "none":  # else they may be added
        names += _EDGE if theirs.edge == own.edge else ("edge",)
    differ = []
    for name in names:
        then, now = getattr(theirs, name), getattr(own, name)
        if then != now and not (name == "norm_eps" and math.isclose(then, now, rel_tol=1e-6)):  # float32
            differ.append((name, then, now))
    if differ:
        what = ", ".join(f"{name} {then} (this model {now})" for name, then, now in differ)
        options = " ".join("--model." + name.replace("_", "-") for name, *_ in differ)
        raise CheckpointError(
            f"{origin} has {what}: leave {options} out, and dadlm train RECIPE --init-from {origin} takes "
            "its shape"
        )


def warn_of_other_text(run: RunConfig, rows: Rows) -> None:
    """A stage on another text than the one before forgets some of the latter: intended, or a wrong path."""
    folder = None if run.init_from is None else training_of(run.init_from)
    if folder is None:
        return
    progress = read_progress(folder.parent)
    then, now = progress["run"]["data"].get("train", ""), run.data.train
    if progress["run"]["model"].get("context") == rows.context:
        is_other = progress["data"][:1] != [rows.fingerprint()]
    else:  # rows of another length have other fingerprints
        is_other = then != now
    if is_other:
        same = " with other content" if then == now else ""
        warnings.warn(f"{run.init_from} was trained on {then}{same}, this stage on {now}", stacklevel=2)

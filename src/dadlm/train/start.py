"""The model a stage begins with: fresh, or taken over from the stage before."""

import math
from dataclasses import replace
from pathlib import Path

import torch

from dadlm.errors import CheckpointError
from dadlm.model import Model, ModelConfig, find_device, load
from dadlm.model.checkpoint import locate, read_config, set_weights, weights
from dadlm.tokens import Rows, Tokenizer
from dadlm.train.apart import set_apart
from dadlm.train.config import RunConfig
from dadlm.train.ranks import Ranks

# Which family may be trained on from which: the stages of the paper, and every family from itself.
_STAGES = {"ar": ("ar",), "mdlm": ("mdlm",), "bd3lm": ("mdlm", "bd3lm"), "dadlm": ("mdlm", "bd3lm", "dadlm")}
# Where these differ the shapes may still fit, but the weights would mean something else.
_MEANING = ("architecture", "heads", "kv_heads", "head_width", "rope_theta", "norm_eps")
_NEW = ("graph.", "head.offset")  # what DA-DLM adds starts fresh when the earlier stage has none


def fresh_model(config: ModelConfig, tokenizer: Tokenizer, seed: int) -> Model:
    """A model with random weights for a tokenizer."""
    torch.manual_seed(seed)
    config = replace(config, vocab_size=tokenizer.vocab_size + 1, eot_id=tokenizer.eot_id)
    return Model(config, tokenizer)


def model_from(origin: str | Path, config: ModelConfig, seed: int) -> Model:
    """A model of `config` with the weights of `origin`; tokenizer and vocabulary come from there too."""
    earlier = load(origin)
    family = earlier.config.family
    if family not in _STAGES[config.family]:
        allowed = " or ".join(_STAGES[config.family])
        raise CheckpointError(
            f"{origin} is a model of family {family}; {config.family} can start from {allowed}"
        )
    if earlier.tokenizer is None:
        raise CheckpointError(f"{origin} has no tokenizer.json: its text cannot be continued")
    for name in _MEANING:
        theirs, own = getattr(earlier.config, name), getattr(config, name)
        if theirs != own and not (name == "norm_eps" and math.isclose(theirs, own, rel_tol=1e-6)):  # float32
            raise CheckpointError(f"{origin} has {name} {theirs}, this model {own}: give the same")
    model = fresh_model(config, earlier.tokenizer, seed)
    tensors = weights(earlier)
    own = weights(model)
    tensors |= {name: own[name] for name in own if name.startswith(_NEW) and name not in tensors}
    set_weights(model, tensors, origin)
    return model


def graph_begins(run: RunConfig) -> bool:
    """Whether what DA-DLM adds is new in this run: it comes from another family and was not yet begun."""
    if run.model.family != "dadlm" or run.init_from is None or (Path(run.out) / "last").exists():
        return False
    return read_config(locate(run.init_from)).family != "dadlm"


def begin_graph(run: RunConfig, model: Model, rows: Rows, ranks: Ranks) -> None:
    """If the graph begins with this run, set the candidates apart; every process gets the first one's."""
    apart = model.head.offset is not None and model.config.track_bias is not None  # neither helps alone
    if not (apart and run.train.apart_rows and graph_begins(run)):
        return
    assert model.head.offset is not None
    model.to(ranks.place(find_device(run.train.device)))
    set_apart(model, rows, count=run.train.apart_rows, seed=run.train.seed)
    agreed = ranks.agreed(model.head.offset.flatten().tolist())
    model.head.offset.data.copy_(torch.tensor(agreed).view_as(model.head.offset))
    model.to("cpu")

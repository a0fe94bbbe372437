"""BD3LM's and MDLM's published Hugging Face folders: read into our models, and written back bit for bit."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from dadlm.errors import CheckpointError, ConfigError
from dadlm.interop.foreign import read_weights
from dadlm.interop.published_form import (
    CONSTANTS,
    FAMILIES,
    INV_FREQ,
    Notes,
    new_notes,
    published_name,
    shape_of,
    speeds,
    take_notes,
)
from dadlm.model import Model, ModelConfig
from dadlm.model.checkpoint import set_weights, weights
from dadlm.model.files import CONFIG, WEIGHTS, save_tensors, write_json
from dadlm.model.untrusted import read_json
from dadlm.tokens import Tokenizer, gpt2

_GPT2_VOCABULARY = 50258  # GPT-2's ids and the mask


def read_published(
    folder: Path, family: str | None = None, block_size: int | None = None
) -> tuple[Model, Notes | None]:
    """The model in a published folder, and notes for writing it back: None if family or block change."""
    their = read_json(folder / CONFIG)
    published = shape_of(their, folder / CONFIG)
    tensors = read_weights(folder)
    tokenizer = _tokenizer(folder, published)
    published = replace(published, eot_id=tokenizer.eot_id)
    family = family or published.family
    if family not in FAMILIES:
        raise ConfigError(f"unknown family {family!r}; choose one of {', '.join(FAMILIES)}")
    if family == "mdlm" and block_size is not None:
        raise ConfigError("an mdlm has one block as long as its context: leave the block size out")
    config = replace(published, family=family, block_size=block_size or published.block_size)
    with torch.device("meta"):  # takes no memory, whatever size the configuration claims
        own = weights(Model(config))
    _check_tensors({published_name(name): tensor for name, tensor in own.items()}, tensors, config, folder)
    model = Model(config, tokenizer)
    set_weights(model, {name: tensors[published_name(name)] for name in own}, folder)
    return model.eval(), take_notes(their, tensors) if config == published else None


def write_published(folder: Path, model: Model, notes: Notes | None = None) -> None:
    """Write a model into an existing folder in the published form; without notes, in float32."""
    config = model.config
    if not config.architecture_class.is_published or config.family not in FAMILIES:
        raise ConfigError(
            f"this is a {config.family} model of architecture {config.architecture!r}; only bd3lm and mdlm "
            "models of architecture 'bd3lm' have the published form"
        )
    if config.edge != "none":
        raise ConfigError(
            "this model has token edges, which the published form cannot hold: use dadlm or transformers"
        )
    if config.lora:
        raise ConfigError("this model has adapters beside its weights: the published form cannot hold them")
    if config.causal_context:
        raise ConfigError(
            "this model reads clean text token by token (causal_context), the published form in blocks: "
            "its texts would be others there"
        )
    tensors = {published_name(name): tensor for name, tensor in weights(model).items()}
    notes = notes or new_notes(config)
    notes.check(config, tensors)
    tensors |= notes.tensors()
    tensors |= {name: tensors[name].bfloat16() for name in notes.bfloat16}
    save_tensors(tensors, folder / WEIGHTS)
    write_json(folder / CONFIG, notes.config)
    if model.tokenizer is not None:
        model.tokenizer.save(folder)


def _check_tensors(
    expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor], config: ModelConfig, origin: object
) -> None:
    """Refuse missing, unknown, misshapen and unusable tensors, all in one message, by published name."""
    wanted = {name: tuple(tensor.shape) for name, tensor in expected.items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items() if name not in CONSTANTS}
    differences = [f"missing: {name} {wanted[name]}" for name in wanted.keys() - found.keys()]
    differences += [f"unknown: {name} {found[name]}" for name in found.keys() - wanted.keys()]
    differences += [
        f"shape: {name} is {found[name]}, expected {wanted[name]}"
        for name in wanted.keys() & found.keys()
        if found[name] != wanted[name]
    ]
    for name, tensor in tensors.items():
        if tensor.dtype not in (torch.float32, torch.bfloat16):
            differences.append(f"type: {name} is {tensor.dtype}, expected float32 or bfloat16")
        elif not bool(tensor.isfinite().all()):
            differences.append(f"values: {name} has some that are not finite")
    stored_speeds, own_speeds = tensors.get(INV_FREQ, speeds(config)).float(), speeds(config)
    same_shape = stored_speeds.shape == own_speeds.shape
    if not same_shape or not torch.allclose(stored_speeds, own_speeds, rtol=2**-8, atol=0.0):  # bfloat16
        differences.append(f"values: {INV_FREQ} is not that of rotary positions with base 10000")
    if differences:
        listing = "\n  ".join(sorted(differences))
        raise CheckpointError(f"the weights of {origin} do not fit its config.json:\n  {listing}")


def _tokenizer(folder: Path, config: ModelConfig) -> Tokenizer:
    """The folder's own, or GPT-2's: both were trained with it, and neither stores it."""
    if (folder / "tokenizer.json").is_file():
        tokenizer = Tokenizer.load(folder)
    elif config.vocab_size == _GPT2_VOCABULARY:
        tokenizer = gpt2()
    else:
        raise CheckpointError(
            f"{folder} has no tokenizer, and {config.vocab_size} ids are not GPT-2's and a mask "
            f"({_GPT2_VOCABULARY}): put the tokenizer.json that it was trained with there"
        )
    if tokenizer.vocab_size + 1 != config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} ids, the model wants "
            f"{config.vocab_size - 1} and the mask after them"
        )
    return tokenizer

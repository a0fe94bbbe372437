"""Models as folders in the Hugging Face layout: config.json, model.safetensors, tokenizer.json. The weights
are float32, or 8 bits with a scale per row (`quantised`); "format" in config.json says which."""

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dadlm.errors import CheckpointError, ConfigError
from dadlm.model import files, pretrained
from dadlm.model.config import ModelConfig
from dadlm.model.files import CONFIG, MODEL_TYPE, WEIGHTS, digest, read_json
from dadlm.model.lora import merge
from dadlm.model.network import Model
from dadlm.model.pretrained import BASE, base_of, locate, weight_files
from dadlm.model.quantised import dequantise, quantise, without_scales
from dadlm.model.uninitialised import uninitialised
from dadlm.tokens import Tokenizer

# What config.json holds besides the shape: our own keys, and those that transformers adds when it saves a
# model.
_METADATA = {"model_type", "format", "weights_sha256", BASE} | {
    *("architectures", "auto_map", "dtype", "transformers_version", "turn_end_id")
}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FORMATS = {32: 1, 8: 2}  # bits of a stored weight: what config.json calls it


def weights(model: Model) -> dict[str, Tensor]:
    """The tensors that define a model; a tied head is the embedding and is not stored twice."""
    state = model.state_dict()
    if model.config.tie_embedding:
        del state["head.linear.weight"]
    return state


def set_weights(model: Model, tensors: Mapping[str, Tensor], origin: object) -> None:
    """Put tensors into a model; any missing, unknown or misshapen one is refused with the full list."""
    own = weights(model)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    whole = {name: t.dtype for name, t in tensors.items() if not t.is_floating_point()}
    _compare(own, shapes, whole, model.config, origin)
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)


def _compare(
    tensors: Mapping[str, Tensor],
    found: dict[str, tuple[int, ...]],
    whole: Mapping[str, object],
    config: ModelConfig,
    origin: object,
) -> None:
    """Refuse names and shapes other than those of a model's tensors, and integer types."""
    own = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    differences = [f"missing: {name} {own[name]}" for name in own.keys() - found.keys()]
    differences += [f"unknown: {name} {found[name]}" for name in found.keys() - own.keys()]
    for name in own.keys() & found.keys():
        if own[name] != found[name]:
            differences.append(f"shape: {name} is {found[name]}, expected {own[name]}")
    differences += [f"type: {name} is {kind}" for name, kind in whole.items()]
    if differences:
        listing = "\n  ".join(sorted(differences))
        raise CheckpointError(f"the weights of {origin} do not fit this {config.family} model:\n  {listing}")


def check_finite(tensors: Mapping[str, Tensor], origin: object) -> None:
    """Refuse weights with NaN or infinity, with which decoding would write endless or empty texts."""
    for name, tensor in tensors.items():
        # The extremes show it without a temporary tensor: a NaN makes both NaN.
        if tensor.numel() and not bool(torch.stack(tensor.aminmax()).isfinite().all()):
            raise CheckpointError(
                f"the weights of {origin} are not finite: {name} holds NaN or infinity; "
                "use another checkpoint"
            )


def write_model(
    folder: Path, model: Model, tensors: Mapping[str, Tensor] | None = None, bits: int = 32
) -> None:
    """Write the three files into an existing folder; `tensors` (the EMA) may stand in for the weights."""
    if bits not in FORMATS:
        raise ConfigError(f"weights are stored in 32 or 8 bits, not in {bits!r}")
    tensors = weights(model) if tensors is None else tensors
    files.save_tensors(quantise(tensors) if bits == 8 else tensors, folder / WEIGHTS)
    metadata = {"model_type": MODEL_TYPE, "format": FORMATS[bits], "weights_sha256": digest(folder / WEIGHTS)}
    files.write_json(folder / CONFIG, metadata | asdict(model.config))
    if model.tokenizer is not None:
        model.tokenizer.save(folder)


def save(model: Model, folder: str | Path, *, bits: int = 32) -> None:
    """Save a model as a folder, all or nothing; with 8 bits it is a quarter the size and nearly as good.
    Adapters are merged into the weights unless they are gated; the checkpoints of a run keep them apart."""
    with files.whole_folder(Path(folder)) as temporary:
        write_model(temporary, merged(model), bits=bits)


def merged(model: Model) -> Model:
    """The model with its adapters merged into the weights. Gated adapters, which act on some of the text
    only, stay as they are."""
    if not model.config.lora or model.config.lora_gated:
        return model
    plain = Model(replace(model.config, lora=0), model.tokenizer)
    set_weights(plain, merge(weights(model)), "the merged model")
    return plain.to(model.device).train(model.training)


def count_parameters(config: ModelConfig) -> dict[str, int]:
    """Parameters by part; a tied head counts once, with the embedding."""
    model = uninitialised(config, device="meta")
    parts: dict[str, nn.Module] = {"embedding": model.backbone.embedding, "layers": model.backbone.layers}
    if model.graph is not None:
        parts["transition"] = model.graph.transition
    counts = {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}
    total = sum(p.numel() for p in model.parameters())
    return {**counts, "other": total - sum(counts.values()), "total": total}


def read_config(folder: Path) -> ModelConfig:
    """The configuration in a model folder; unknown keys are refused."""
    file = folder / CONFIG
    content = {name: value for name, value in _read_metadata(folder).items() if name not in _METADATA}
    unknown = content.keys() - {field.name for field in fields(ModelConfig)}
    if unknown:
        raise CheckpointError(f"{file} has unknown keys: {', '.join(sorted(unknown))}")
    try:
        return ModelConfig(**content)
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"{file} is not a valid configuration: {error}") from error


def _read_metadata(folder: Path) -> dict[str, Any]:
    """config.json of a folder, if it is one of ours."""
    file = folder / CONFIG
    if not file.is_file():
        raise CheckpointError(f"{folder} is not a model folder: it has no {CONFIG}")
    content = read_json(file, "the configuration of a model")
    if content.get("model_type") != MODEL_TYPE:
        raise CheckpointError(f"{file} does not describe a dadlm model (model_type is not 'dadlm')")
    if content.get("format") not in FORMATS.values():
        raise CheckpointError(f"{file} has a format that this release does not know: install a newer dadlm")
    return content


def _check_header(folder: Path, config: ModelConfig, is_quantised: bool) -> None:
    """Compare names and shapes in the header of the weights with the configuration; builds nothing."""
    headers = [files.read_shapes(file) for file in weight_files(folder)]
    header = {name: found for one in headers for name, found in one.items()}
    if len(header) < sum(map(len, headers)):
        raise CheckpointError(f"{folder} holds weights that its base has too: adapters only add to a model")
    if is_quantised:
        header = without_scales(header, {name for name, (kind, _) in header.items() if kind == "I8"})
    if config.layers > len(header):
        raise CheckpointError(
            f"the weights of {folder} do not fit its config.json: {config.layers} layers, "
            f"but only {len(header)} tensors"
        )
    own = weights(uninitialised(config, device="meta"))
    whole = {name: kind for name, (kind, _) in header.items() if "F" not in kind and not is_quantised}
    _compare(own, {name: shape for name, (_, shape) in header.items()}, whole, config, folder)


def find_device(name: str | torch.device) -> torch.device:
    """A device that is there, or a clear error; auto is CUDA where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {str(name)!r} cannot be used: {str(error).splitlines()[0]}") from error
    if device.type == "cuda" and device.index not in (None, torch.cuda.current_device()):
        # Kernels and captures run on the current device, in every thread.
        raise ConfigError(f"device {name!s}: choose the GPU by CUDA_VISIBLE_DEVICES, and pass device cuda")
    return device


def load(
    name_or_folder: str | Path, device: str | torch.device = "cpu", dtype: str | torch.dtype = "float32"
) -> Model:
    """Load a model of any family: one that ships with the package by its name ("dadlm-edges", "bd3lm", "ar";
    `dadlm models` lists them), "smollm2" from its own package, a folder, or a Hugging Face repository name.

    Such a name always means that model; a folder called dadlm is "./dadlm" or Path("dadlm"). device
    "auto" is CUDA where there is one; dtype "auto" is bfloat16 on CUDA, where it is several times faster, and
    float32 elsewhere. Only in float32 is a row's text the same in every batch.
    """
    device, dtype = find_device(device), str(dtype).removeprefix("torch.")
    if dtype not in ("auto", *_DTYPES):
        raise ConfigError(f"dtype must be one of auto, {', '.join(_DTYPES)}, got {dtype!r}")
    if dtype == "auto":
        dtype = "bfloat16" if device.type == "cuda" else "float32"
    folder = locate(name_or_folder)
    config, tokenizer = read_config(folder), _read_tokenizer(folder)
    if tokenizer is not None:
        ids, eot = tokenizer.vocab_size, tokenizer.eot_id
        if ids + 1 != config.vocab_size:
            wanted = config.vocab_size - 1
            raise CheckpointError(f"{folder}: the tokenizer has {ids} ids, the model wants {wanted}")
        if eot != config.eot_id:
            where = f"id {eot} in the tokenizer, {config.eot_id} in the model"
            raise CheckpointError(f"{folder}: end-of-text is {where}")
    metadata, base = _read_metadata(folder), base_of(folder)
    formats = [metadata["format"], *([] if base is None else [_read_metadata(base)["format"]])]
    is_quantised = FORMATS[8] in formats
    _check_header(folder, config, is_quantised)
    parts = weight_files(folder)
    tensors = {name: tensor for file in parts for name, tensor in files.load_tensors(file).items()}
    model = uninitialised(config, tokenizer)
    set_weights(model, dequantise(tensors, folder) if is_quantised else tensors, folder)
    if base is not None:
        _check_base(folder, metadata[BASE], parts[:-1])
    expected = metadata.get("weights_sha256")
    if expected is not None and expected != digest(*(parts if base is None else parts[-1:])):
        raise CheckpointError(f"{parts[-1]} was changed after it was saved: its checksum differs")
    model = model.to(device, _DTYPES[dtype]).eval()
    check_finite(weights(model), folder)
    return model


def _check_base(folder: Path, base: dict[str, Any], files: tuple[Path, ...]) -> None:
    """Refuse another base than the one the adapters were trained on: with that they would give noise."""
    if base.get("weights_sha256") != digest(*files):
        raise CheckpointError(
            f"{folder} holds adapters that were trained on other weights than those of {base['model']} here: "
            f"get the base that they were made with, or make them anew from a model that was trained on this "
            f"one: dadlm convert MODEL --adapters {base['model']} --out {folder}"
        )


def _read_tokenizer(folder: Path) -> Tokenizer | None:
    """A folder's own tokenizer, or that of its base; the models that ship with the package share one."""
    shared, base = pretrained.PRETRAINED, base_of(folder)
    for place in (folder, *([shared] if folder.parent == shared else []), *([] if base is None else [base])):
        if (place / "tokenizer.json").is_file():
            return Tokenizer.load(place)
    return None

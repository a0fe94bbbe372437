"""dadlm convert: other people's models into ours, ours into other forms, and onto the hub."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from dadlm.cli.options import JsonOption, parse
from dadlm.errors import ConfigError
from dadlm.interop.convert import Form, convert
from dadlm.interop.hub import check_name, push
from dadlm.model import Model


@dataclass(frozen=True)
class Options(JsonOption):
    source: tyro.conf.Positional[str]
    """A folder as BD3LM or MDLM published it, or a model of ours: a folder, a training run, one that ships
    with dadlm, a Hugging Face name."""
    out: str | None = None
    """Folder to write."""
    to: Form | None = None
    """dadlm (the default); bd3lm or mdlm: their published form; transformers: for AutoModel, with a card."""
    family: Literal["bd3lm", "mdlm", "ar"] | None = None
    """What to use the weights as: bd3lm or mdlm of a published model, bd3lm or ar of a causal one."""
    block_size: int | None = None
    """Tokens per block, if not as published (of a causal model: 16)."""
    from_causal: bool = False
    """SOURCE is a Llama-like causal model: make it a block-diffusion model, to be trained further."""
    lora: int = 0
    """With --from-causal: train only additions of this rank; 0 trains everything."""
    gated: bool = False
    """With --lora: the additions act on masked blocks only, and in mode ar the model stays the original, to
    draft for itself (mode lossless)."""
    adapters: str | None = None
    """SOURCE has gated adapters: write these alone, and what else was learned, to be opened with this base: a
    name (smollm2), or the folder of the model that SOURCE was converted from, as family ar."""
    bits: Literal[32, 8] = 32
    """With --adapters: of a stored weight."""
    moments: bool = False
    """SOURCE is a training run: its optimiser's moments come along in bf16, so that training can go on from
    the folder elsewhere as it would from the run."""
    push: str | None = None
    """OWNER/NAME on the Hugging Face hub to upload to, in the form that transformers and dadlm both load."""
    private: bool = False
    """With --push: nobody else sees it."""


def run(words: list[str]) -> int:
    options = parse(Options, words, "convert")
    if options.out is None and options.push is None:
        raise ConfigError("where to? Name a folder with --out, or OWNER/NAME on the hub with --push")
    if options.push is not None:
        check_name(options.push)
        if options.to not in (None, "transformers") or options.from_causal:
            raise ConfigError("--push uploads the form that transformers loads: convert first, then push")
    if options.private and options.push is None:
        raise ConfigError("--private belongs to --push")
    if options.lora and not options.from_causal:
        raise ConfigError("--lora belongs to --from-causal")
    if options.gated and not options.lora:
        raise ConfigError("--gated belongs to --lora R")
    apart = options.adapters is not None
    form = options.to or options.push or options.from_causal or options.family or options.block_size
    if apart and (form or options.moments):
        raise ConfigError("--adapters takes a model apart as it is: use it with --out and --bits alone")
    if options.bits != 32 and not apart:
        raise ConfigError("--bits belongs to --adapters")
    if options.moments and form:
        raise ConfigError("--moments keeps a training run as it is: use it with --out alone")
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(options.out or Path(scratch) / "model")
        model = _convert(options, out)
        address = None if options.push is None else push(out, options.push, options.private)
    config = model.config
    result = {
        "folder": options.out,
        "family": config.family,
        "block": config.block,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "address": address,
    }
    if options.json:
        print(json.dumps(result))
    else:
        places = " and ".join(place for place in (options.out, address) if place)
        print(f"{config.family}, blocks of {config.block}, {result['parameters']:,} parameters: {places}")
    return 0


def _convert(options: Options, out: Path) -> Model:
    if options.adapters is not None:
        from dadlm.model.adapters import save_adapters

        return save_adapters(options.source, options.adapters, out, bits=options.bits)
    if options.moments:
        from dadlm.train.handover import save_compact

        return save_compact(options.source, out)
    if options.from_causal:
        from dadlm.model.causal import convert_causal

        chosen = {"family": options.family, "block_size": options.block_size}
        chosen = {name: value for name, value in chosen.items() if value is not None}
        return convert_causal(options.source, out, lora=options.lora, gated=options.gated, **chosen)
    to = options.to or ("transformers" if options.push else "dadlm")
    return convert(options.source, out, to, options.family, options.block_size)

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
    """A published BD3LM or MDLM folder, or a dadlm model: a folder, a training run, the name
    of a shipped model, or a Hugging Face name. With --from-causal, a causal language model."""
    out: str | None = None
    """Folder to write."""
    to: Form | None = None
    """Format to write: dadlm (the default); bd3lm or mdlm, the
    published formats; transformers, for AutoModel, with a card."""
    family: Literal["bd3lm", "mdlm", "ar"] | None = None
    """What to use the weights as: bd3lm or mdlm for a published model, bd3lm or ar for a causal one."""
    block_size: int | None = None
    """Tokens per block, if different from the published value (for a causal model, 16)."""
    from_causal: bool = False
    """SOURCE is a causal model of the Llama architecture:
    make it a block-diffusion model, to be trained further."""
    lora: int = 0
    """With --from-causal: train only adapters of this rank; 0 trains all weights."""
    gated: bool = False
    """With --lora: the adapters act on masked blocks only. In mode ar the
    model remains the original, and it can draft for itself (mode lossless)."""
    adapters: str | None = None
    """SOURCE has gated adapters: write only these and the other trained
    weights, to be loaded with this base model, given as a name (smollm2) or
    as the folder of the model, of family ar, that SOURCE was converted from."""
    bits: Literal[32, 8] = 32
    """With --adapters: bits per stored weight."""
    moments: bool = False
    """SOURCE is a training run: include the optimiser's moments in bf16, so that
    training can continue from the folder elsewhere as it would from the run."""
    push: str | None = None
    """OWNER/NAME on the Hugging Face hub to upload to, in
    the format that both transformers and dadlm load."""
    private: bool = False
    """With --push: make the repository private."""


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

"""How fast the models of the study are: time and memory of a step, tokens per second of whole texts.

    python -m research.speed --models ar=FOLDER bd3lm-16-long=FOLDER dadlm-16-long=FOLDER

Nothing else may run on the device meanwhile. Steps and memory follow the paper's protocol (`dadlm evaluate
latency`), at batch 32 and 1; texts run to the end of the context, with graph captures and all else counted.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dadlm.decode import DecodeSettings, generate
from dadlm.evaluate.latency import device_name, latency, random_prompts
from dadlm.evaluate.presets import Configuration, configurations_for, default_prompt_tokens
from dadlm.evaluate.work import write_result
from dadlm.model import Model
from research.quality import position_name
from research.texts import named_models, of_run

BATCHES = (32, 1)
_WARM_UP = 4  # blocks; enough to compile kernels


class System(NamedTuple):
    """A model of the study, and the nucleus that its tokens are drawn from."""

    run: str
    model: Model
    nucleus: str = "standard"

    @property
    def name(self) -> str:
        return position_name(self.run) if self.nucleus == "position" else self.run


def texts(systems: list[System], new_tokens: int | None) -> dict[str, Any]:
    """Tokens per second of each system, decoded at several speeds, at each batch size."""
    rows = [
        {
            "model": one.name,
            **of_run(one.run, one.nucleus),
            "family": one.model.config.family,
            "batch": batch,
            **_text(one.model, configuration, batch, new_tokens),
        }
        for batch in BATCHES
        for one in systems
        for configuration in configurations_for(one.model.config, _decodings(one))
    ]
    return {"kind": "texts per second", "device": device_name(systems[0].model), "rows": rows}


def _decodings(system: System) -> list[str]:
    N = system.model.config.block
    nucleus = "/nucleus=position" if system.nucleus == "position" else ""
    return [f"{one}{nucleus}" for one in ("FH", *(f"T={max(1, N // part)}" for part in (1, 2, 4)))]


def _text(model: Model, configuration: Configuration, batch: int, new_tokens: int | None) -> dict[str, Any]:
    context = model.config.context
    prompts = random_prompts(model, batch, default_prompt_tokens(context), seed=0)
    length = new_tokens or context - len(prompts[0])
    settings = replace(configuration.settings, max_new_tokens=length)
    short = replace(settings, max_new_tokens=min(length, _WARM_UP * model.config.block))
    generate(model, prompts, seed=0, batch_size=batch, settings=short)
    _wait(model)
    began = time.perf_counter()
    made = generate(model, prompts, seed=0, batch_size=batch, settings=settings)
    _wait(model)
    seconds = time.perf_counter() - began
    tokens = sum(map(len, made.tokens))
    return {
        "configuration": configuration.label,
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "tpf": made.mean_tokens_per_forward,
    }


def _wait(model: Model) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", required=True, help="NAME=FOLDER, names as in the plan")
    parser.add_argument("--new-tokens", type=int, help="of a text; to the end of the context")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--out", default="research/results/speed")
    options = parser.parse_args()
    out = Path(options.out)
    models = named_models(options.models, options.device, options.dtype)
    systems = [System(name, model) for name, model in models.items()]
    # DA-DLM once more, drawn from the nucleus of positions.
    systems += [one._replace(nucleus="position") for one in systems if one.model.config.family == "dadlm"]
    settings = {one.name: DecodeSettings(nucleus="position") for one in systems if one.nucleus == "position"}
    for batch in BATCHES:
        result = latency(
            {one.name: one.model for one in systems},
            batch_size=batch,
            new_tokens=options.new_tokens,
            decoding=settings,
        )
        for row, one in zip(result["rows"], systems, strict=True):
            row |= of_run(one.run, one.nucleus)
        write_result(out / f"latency-{batch}.json", result)
    write_result(out / "texts.json", texts(systems, options.new_tokens))


if __name__ == "__main__":
    main()

"""dadlm finetune: a model and pairs of texts → a model that writes the second text after the first."""

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Literal

import tyro
from tyro.conf import Fixed, Suppress

from dadlm.cli.options import joined
from dadlm.noise import NoiseConfig
from dadlm.recipes import finetune as recipe
from dadlm.train import FinetuneConfig, TrainConfig
from dadlm.train.finetune import finetune


# What belongs to training alone is neither listed nor taken.
@dataclass(frozen=True, kw_only=True)
class _Noise(NoiseConfig):
    clip_search: Suppress[Fixed[bool]] = False


@dataclass(frozen=True, kw_only=True)
class _Train(TrainConfig):
    parallel: Suppress[Fixed[Literal["ddp", "fsdp"]]] = "ddp"


@dataclass(frozen=True, kw_only=True)
class _Options(FinetuneConfig):
    noise: _Noise = field(default_factory=_Noise)
    train: _Train = field(default_factory=_Train)


def run(words: list[str]) -> int:
    as_json = "--json" in words  # no setting of the run: it is not saved with it
    words = [word for word in words if word != "--json"]
    start = recipe()
    changed = {"noise": _Noise(**asdict(start.noise)), "train": _Train(**asdict(start.train))}
    config = tyro.cli(
        _Options,
        args=joined(_Options, words),
        default=_Options(**({one.name: getattr(start, one.name) for one in fields(start)} | changed)),
        prog="dadlm finetune",
        description="Fine-tune a model on pairs of texts. --json prints the result as one JSON object.",
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    done = finetune(config, quiet=as_json)
    if as_json:
        print(json.dumps(asdict(done), ensure_ascii=False))
    elif done.interrupted:
        print(f"stopped at step {done.step}; saved in {done.folder}. The same command resumes it.")
    else:
        early = f", {config.patience} validations after the best" if done.step < config.train.steps else ""
        rouge = "" if done.rouge is None else f"best ROUGE {done.rouge:.2f} at step {done.best_step}, "
        print(f"finished at step {done.step}{early}; {rouge}model in {done.folder}/best")
        print(f"dadlm summarize --model {done.folder} FILE")
    return 130 if done.interrupted else 0

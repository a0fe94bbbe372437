"""dadlm finetune: a model and pairs of texts → a model that writes the second text after the first."""

import json
from dataclasses import asdict

import tyro

from dadlm.recipes import finetune as recipe
from dadlm.train.finetune import finetune
from dadlm.train.finetune_config import FinetuneConfig


def run(words: list[str]) -> int:
    as_json = "--json" in words  # no setting of the run: it is not saved with it
    words = [word for word in words if word != "--json"]
    config = tyro.cli(
        FinetuneConfig,
        args=words,
        default=recipe(),
        prog="dadlm finetune",
        description="Fine-tune a model on pairs of texts. --json prints the result as one JSON object.",
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    done = finetune(config, quiet=as_json)
    if as_json:
        print(json.dumps(asdict(done), ensure_ascii=False))
    elif done.interrupted:
        print(f"stopped at step {done.step}; saved in {done.folder}. The same command goes on from there.")
    else:
        rouge = "" if done.rouge is None else f"best ROUGE {done.rouge:.2f}, "
        print(f"finished at step {done.step}; {rouge}model in {done.folder}/best")
        print(f"dadlm summarize --model {done.folder} FILE")
    return 130 if done.interrupted else 0

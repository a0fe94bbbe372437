"""What makes the candidates of a group specialise, and how fast, on real text.

From one MDLM and one BD3LM, every variant of DA-DLM trains for the same number of steps; the gap between
the bound through node marginals and the path-marginal reconstruction says how far its candidates have
parted. Results and curves go to a JSON file after every variant, so that nothing is lost.

    dadlm data prepare wiki.jsonl.zst --tokenizer bpe:8192 --out cache
    python benchmarks/specialisation.py --train cache/FOLDER --valid cache/FOLDER --out results.json
"""

import argparse
import copy
import json
import time
from dataclasses import replace
from pathlib import Path

import torch

from dadlm.model import Model, ModelConfig
from dadlm.model.checkpoint import set_weights, weights
from dadlm.recipes import recipe
from dadlm.tokens import Rows, Shards
from dadlm.train import Trainer

# Changes to the lab recipe: those of the model, and those of training.
VARIANTS: dict[str, tuple[dict, dict]] = {
    "plain": ({"track_bias": None}, {}),
    "track 3": ({}, {}),
    "track 3, offset 1": ({"candidate_offset": 1.0}, {}),
    "offset 1": ({"track_bias": None, "candidate_offset": 1.0}, {}),
    "power 4": ({"track_bias": None}, {"power": 4.0, "power_steps": 100}),
    "power 4, offset 1": ({"track_bias": None, "candidate_offset": 1.0}, {"power": 4.0, "power_steps": 100}),
    "track 3, offset 1, power 4": ({"candidate_offset": 1.0}, {"power": 4.0, "power_steps": 100}),
    "track 3, offset 0.3": ({"candidate_offset": 0.3}, {}),
    "track 3, offset 3": ({"candidate_offset": 3.0}, {}),
    "track 1, offset 1": ({"track_bias": 1.0, "candidate_offset": 1.0}, {}),
    "track 3, offset 1, graph lr x5": ({"candidate_offset": 1.0}, {"graph_lr_scale": 5.0}),
    "track 3, offset 1, gated": ({"candidate_offset": 1.0, "transition": "gated"}, {}),
    "track 3, offset 1, input expansion": (
        {"candidate_offset": 1.0, "expand_at": 0, "candidate_scale": 0.02},
        {},
    ),
}
MARKS = (25, 50, 100, 150, 200, 300, 400, 600, 800, 1000, 1500, 2000)


class Study:
    """Runs stages on the same rows and keeps what they gave."""

    def __init__(self, options: argparse.Namespace, rows: Rows, valid: Rows) -> None:
        self.options, self.rows, self.valid = options, rows, valid
        self.results: list[dict] = []

    def stage(
        self, name: str, family: str, steps: int, origin: Model | None, model=None, train=None
    ) -> Model:
        """Train `steps` from `origin` and score at the marks on the way."""
        run = recipe(f"lab-{family}", out="unused")
        config = replace(run.model, context=self.rows.context, **(self.shape() | (model or {})))
        settings = {
            "batch_size": self.options.rows,
            "valid_rows": 64,
            "compile": self.options.compile,
            "warmup": 50,
        }
        run = replace(run, model=config, train=replace(run.train, ema=0.99, **settings, **(train or {})))
        trainer = Trainer(run, start(config, origin), self.rows, self.valid, quiet=True)
        curve, began = [], time.perf_counter()
        for step in range(1, steps + 1):
            trainer.step()
            if step in MARKS or step == steps:
                scores, _ = trainer.score()
                entry = (step, float(scores.reconstruction.mean()), float(scores.bound.mean()), scores.gap)
                curve.append([round(number, 4) for number in entry])
        seconds = time.perf_counter() - began
        trained = trainer.state.model
        set_weights(trained, trainer.state.ema.average, name)
        first = next((step for step, _, _, gap in curve if gap >= 0.05), None)
        print(f"{name:36s} {curve[-1]}  gap 0.05 by step {first}  {seconds:.0f} s", flush=True)
        self.results.append({"name": name, "curve": curve, "seconds": round(seconds, 1)})
        self.save()
        return trained

    def shape(self) -> dict:
        return {"layers": 2, "width": 64, "heads": 2, "expand_at": 1} if self.options.tiny else {}

    def save(self) -> None:
        content = {
            "columns": ["step", "reconstruction", "bound", "gap"],
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "torch": torch.__version__,
            "options": {
                key: value
                for key, value in vars(self.options).items()
                if key not in ("train", "valid", "out")
            },
            "runs": self.results,
        }
        Path(self.options.out).write_text(json.dumps(content, indent=1), encoding="utf-8")


def start(config: ModelConfig, origin: Model | None) -> Model:
    """A fresh model with every weight that the earlier stage has."""
    torch.manual_seed(0)
    model = Model(config)
    if origin is not None:
        own, earlier = weights(model), weights(origin)
        set_weights(model, {name: earlier.get(name, own[name]) for name in own}, "origin")
    return model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", required=True)
    parser.add_argument("--valid", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument(
        "--steps", type=int, nargs=4, default=(3000, 1000, 300, 1000), help="mdlm bd3lm variant long"
    )
    parser.add_argument("--seconds", type=float, default=900, help="no new variant is begun after so long")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    began = time.perf_counter()
    rows = Rows.from_shards(Shards.open(Path(options.train)), options.context)
    study = Study(options, rows, Rows.from_shards(Shards.open(Path(options.valid)), options.context))
    mdlm_steps, bd3lm_steps, steps, long = options.steps
    mdlm = study.stage("mdlm", "mdlm", mdlm_steps, None)
    bd3lm = study.stage("bd3lm", "bd3lm", bd3lm_steps, mdlm)
    study.stage("bd3lm, trained on", "bd3lm", steps, copy.deepcopy(bd3lm))
    for name, (model, train) in VARIANTS.items():
        if time.perf_counter() - began < options.seconds:
            study.stage(name, "dadlm", steps, bd3lm, model, train)
    ranked = sorted(
        (one for one in study.results if one["name"] in VARIANTS), key=lambda one: one["curve"][-1][1]
    )
    best = ranked[0]["name"]
    if long:
        study.stage(f"long: {best}", "dadlm", long, bd3lm, *VARIANTS[best])
        study.stage("long: bd3lm", "bd3lm", long, bd3lm)


if __name__ == "__main__":
    main()

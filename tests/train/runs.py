"""What the tests of training share: a small run of each family on made-up text, and how to compare two."""

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dadlm.model import Model, ModelConfig
from dadlm.model.files import load_tensors
from dadlm.tokens import Rows, Tokenizer, word_level
from dadlm.train import DataConfig, Finished, RunConfig, TrainConfig, Trainer, gradients
from dadlm.train.loop import Loop
from dadlm.train.trainer import fresh_model

FAMILIES = ("ar", "mdlm", "bd3lm", "dadlm")
CONTEXT = 16
WORDS = [f"w{number}" for number in range(30)]


def tokenizer() -> Tokenizer:
    return word_level(WORDS)


def shape(family: str, **changes: Any) -> ModelConfig:
    """Two layers on blocks of 4."""
    sizes = {"vocab_size": len(WORDS) + 2, "eot_id": len(WORDS), "context": CONTEXT, "block_size": 4}
    sizes |= {"layers": 2, "width": 16, "heads": 2, "candidates": 3, "candidate_scale": 0.3, "expand_at": 1}
    return ModelConfig(family=family, **(sizes | changes))  # type: ignore[arg-type]


def config(family: str, out: Path, edge: str = "none", **train: Any) -> RunConfig:
    """Options go to `TrainConfig`; with an `ar_weight` the model is one that is both."""
    plan = {"steps": 12, "batch_size": 4, "lr": 1e-2, "warmup": 3, "ema": 0.9, "device": "cpu"}
    plan |= {"valid_every": 4, "valid_rows": 8, "save_every": 100, "log_every": 1}
    data = DataConfig(train="made up")
    model = shape(family, edge=edge, causal_context="ar_weight" in train)
    return RunConfig(model=model, data=data, train=TrainConfig(**(plan | train)), out=str(out))


def text(count: int, seed: int) -> Rows:
    """Rows in which every word is followed by one of two: something to learn."""
    generator = torch.Generator().manual_seed(seed)
    turn = torch.randint(2, (count * CONTEXT,), generator=generator)
    words, word = [], 0
    for step in turn.tolist():
        word = (word * 2 + 1 + step * 7) % len(WORDS)
        words.append(word)
    return Rows.from_ids(words, CONTEXT)


def trainer(run: RunConfig, model: Model | None = None, **options: Any) -> Trainer:
    """A trainer in a new process' place: it knows nothing but the settings and what lies in the folder."""
    model = model or fresh_model(run.model, tokenizer(), run.train.seed)
    return Trainer(run, model, text(40, 1), text(32, 2), quiet=True, **options)


def train(run: RunConfig, stop_at: int | None = None) -> Finished:
    """Run to the end, or until Ctrl-C is pressed while step `stop_at` is being made."""
    one = trainer(run)
    if stop_at is not None:
        before_step(one, stop_at, lambda: signal.raise_signal(signal.SIGINT))
    return one.run()


def before_step(one: Loop, number: int, act: Callable[[], object]) -> None:
    """Do something just before step `number` (counted from 1) is made."""
    make = one.step

    def step() -> float:
        if one.state.step + 1 == number:
            act()
        return make()

    one.step = step


def poison(patch: pytest.MonkeyPatch, value: float = float("nan")) -> None:
    """From now on every loss is multiplied by this, so values and gradients are spoilt."""
    score = gradients.losses

    def spoilt(*arguments: Any, **how: Any) -> Any:
        parts = score(*arguments, **how)
        return replace(parts, train=parts.train * value)

    patch.setattr(gradients, "losses", spoilt)


def _with(part: str, run: Any, **changes: Any) -> Any:
    """A run, or a fine-tuning, with some settings of a part of it changed."""
    return replace(run, **{part: replace(getattr(run, part), **changes)})


with_model, with_noise, with_train = (partial(_with, part) for part in ("model", "noise", "train"))


def state_tensors(folder: Path) -> dict[str, Tensor]:
    """Raw weights, averages and AdamW's moments as they lie on disk."""
    return load_tensors(folder / "training" / "state.safetensors")


def progress(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "training" / "state.json").read_text(encoding="utf-8"))


def metrics(out: Path) -> list[dict[str, float]]:
    """The log, less what depends on the clock."""
    entries = [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [{key: value for key, value in one.items() if key != "tokens_per_second"} for one in entries]


def assert_same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different, f"{len(different)} of {len(one)} tensors differ: {different[:5]}"

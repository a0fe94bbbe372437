"""What depends on the step: learning rate, averaging; and the checks of the settings."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.runs import config, metrics, train, trainer, with_model, with_train

from dadlm.errors import ConfigError
from dadlm.model.checkpoint import weights
from dadlm.train import DataConfig, TrainConfig
from dadlm.train.state import Ema


def test_learning_rate_warms_up_holds_and_decays() -> None:
    plan = TrainConfig(steps=20, lr=0.8, warmup=4, decay=5)
    rates = [plan.lr_at(step) for step in range(20)]
    assert rates[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert rates[4:16] == pytest.approx([0.8] * 12)
    assert rates[15:] == pytest.approx([0.8, 0.64, 0.48, 0.32, 0.16])  # the step after the last would have 0


def test_the_loop_uses_the_schedules(tmp_path: Path) -> None:
    run = config("dadlm", tmp_path, warmup=4, decay=3, graph_lr_scale=3.0)
    one, rates = trainer(run), []
    make = one.step

    def step() -> float:
        loss = make()
        rates.append([group["lr"] for group in one.state.optimizer.param_groups])
        return loss

    one.step = step
    one.run()
    plan = run.train
    assert [rate for rate, _ in rates] == pytest.approx([plan.lr_at(step) for step in range(12)])
    assert [rate for _, rate in rates] == pytest.approx([3 * plan.lr_at(step) for step in range(12)])
    names = {parameter: name for name, parameter in one.state.model.named_parameters()}
    for new, group in zip((False, True), one.state.optimizer.param_groups, strict=True):
        assert {names[parameter].startswith("graph.") for parameter in group["params"]} == {new}
    logged = [entry["lr"] for entry in metrics(tmp_path) if "lr" in entry]
    assert logged == [plan.lr_at(step) for step in range(12)]


def test_every_step_has_its_own_dropout(tmp_path: Path) -> None:
    """Same row, same weights, same noise level: only what is dropped may differ from step to step."""
    runs = []
    for _ in range(2):
        one = trainer(with_model(config("ar", tmp_path, batch_size=1, lr=1e-12), dropout=0.5))
        one.gradients.batches = replace(one.batches, rows=one.batches.rows.cut(0, 1))
        runs.append([float(one.step()) for _ in range(6)])
    assert len(set(runs[0])) == 6
    assert runs[0] == runs[1]


def test_average_follows_its_formula(tmp_path: Path) -> None:
    one = trainer(config("bd3lm", tmp_path, ema=0.5, steps=12))
    expected = {name: tensor.clone().double() for name, tensor in weights(one.state.model).items()}
    make = one.step

    def step() -> float:
        number = one.state.step
        loss = make()
        decay = min(0.5, (1 + number) / (10 + number))
        for name, tensor in weights(one.state.model).items():
            expected[name] = decay * expected[name] + (1 - decay) * tensor.double()
        return loss

    one.step = step
    one.run()
    assert (1 + 11) / (10 + 11) > 0.5 > (1 + 7) / (10 + 7)  # both branches of the minimum were taken
    for name, tensor in one.state.ema.average.items():
        torch.testing.assert_close(tensor.double(), expected[name], atol=1e-6, rtol=1e-5)


def test_average_is_lent_and_given_back_even_when_scoring_fails() -> None:
    model = {"x": torch.tensor([1.0])}
    ema = Ema({"x": torch.tensor([5.0])}, limit=0.9)
    with ema.in_place_of(model):
        assert model["x"].item() == 5
    assert (model["x"].item(), ema.average["x"].item()) == (1, 5)
    with pytest.raises(RuntimeError), ema.in_place_of(model):
        raise RuntimeError
    assert (model["x"].item(), ema.average["x"].item()) == (1, 5)


def test_gradients_are_clipped(tmp_path: Path) -> None:
    one = trainer(config("bd3lm", tmp_path, clip=1e-3))
    one.step()
    norm = torch.stack([p.grad.norm() for p in one.state.model.parameters() if p.grad is not None]).norm()
    assert norm.item() == pytest.approx(1e-3, rel=1e-3)


def test_training_learns(tmp_path: Path) -> None:
    train(with_train(config("ar", tmp_path), steps=60, valid_every=30))
    values = [entry["valid_loss"] for entry in metrics(tmp_path) if "valid_loss" in entry]
    assert values[-1] < values[0] - 0.3


POSITIVE = ("steps", "batch_size", "valid_every", "log_every", "save_every", "lr", "clip", "graph_lr_scale")
REFUSED = [(name, 0) for name in POSITIVE] + [(name, float("nan")) for name in ("lr", "clip", "ema")]
REFUSED += [("warmup", -1), ("decay", 1001), ("ema", 1.0), ("betas", (1.0, 0.9)), ("weight_decay", -1.0)]


@pytest.mark.parametrize(("name", "value"), [*REFUSED, ("lr", -1.0), ("seed", 2**64), ("accumulate", 5)])
def test_settings_that_cannot_be_honoured_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        TrainConfig(**{name: value})


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 2.0, float("nan")])
def test_held_out_share_must_leave_something_on_both_sides(share: float) -> None:
    with pytest.raises(ConfigError, match="valid_share"):
        DataConfig(valid_share=share)

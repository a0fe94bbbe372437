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
    logged = [entry["lr"] for entry in metrics(tmp_path) if "lr" in entry]
    assert logged == [plan.lr_at(step) for step in range(12)]


def test_every_step_has_its_own_dropout(tmp_path: Path) -> None:
    """Same row, same weights, same noise level: only what is dropped may differ from step to step."""
    one = trainer(with_model(config("ar", tmp_path, batch_size=1, lr=1e-12), dropout=0.5))
    one.gradients.batches = replace(one.batches, rows=one.batches.rows.cut(0, 1))
    losses = [one.step() for _ in range(6)]
    assert len(set(losses)) == 6
    again = trainer(with_model(config("ar", tmp_path, batch_size=1, lr=1e-12), dropout=0.5))
    again.gradients.batches = replace(again.batches, rows=again.batches.rows.cut(0, 1))
    assert [again.step() for _ in range(6)] == losses


def test_what_dadlm_adds_learns_at_its_own_rate(tmp_path: Path) -> None:
    groups = trainer(config("dadlm", tmp_path, graph_lr_scale=3.0)).state.optimizer.param_groups
    named = trainer(config("dadlm", tmp_path)).state.model
    graph = sum(p.numel() for name, p in named.named_parameters() if name.startswith("graph."))
    assert [group["scale"] for group in groups] == [1.0, 3.0]
    assert sum(p.numel() for p in groups[1]["params"]) == graph > 0
    assert sum(p.numel() for p in groups[0]["params"]) == sum(p.numel() for p in named.parameters()) - graph


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


def test_average_starts_fast_and_ends_slow() -> None:
    ema = Ema({"x": torch.zeros(1)}, limit=0.9)
    ema.update({"x": torch.ones(1)}, 0)
    assert ema.average["x"].item() == pytest.approx(1 - 1 / 10)
    ema.average["x"].zero_()
    ema.update({"x": torch.ones(1)}, 80)
    assert ema.average["x"].item() == pytest.approx(1 - 0.9)


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


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"batch_size": 6, "accumulate": 4}, "6 is not divisible by accumulate 4"),
        ({"lr": 0.0}, "lr"),
        ({"lr": -1.0}, "lr"),
        ({"lr": float("nan")}, "lr"),
        ({"clip": 0.0}, "clip"),
        ({"clip": float("nan")}, "clip"),
        ({"graph_lr_scale": 0.0}, "graph_lr_scale"),
        ({"warmup": -1}, "warmup"),
        ({"decay": 11, "steps": 10}, "decay"),
        ({"ema": 1.0}, "ema"),
        ({"valid_every": 0}, "valid_every"),
        ({"log_every": 0}, "log_every"),
        ({"save_every": 0}, "save_every"),
        ({"betas": (1.0, 0.999)}, "betas"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"seed": 2**64}, "seed"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        TrainConfig(**changes)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 2.0, float("nan")])
def test_held_out_share_must_leave_something_on_both_sides(share: float) -> None:
    with pytest.raises(ConfigError, match="valid_share"):
        DataConfig(valid_share=share)
